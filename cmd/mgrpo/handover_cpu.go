//go:build !cuda

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// driverFiles exist while NVIDIA's kernel driver is loaded: on Linux, and on Linux under Windows.
var driverFiles = []string{"/dev/nvidiactl", "/dev/dxg"}

// handOver replaces this process by mgrpo-cuda, or returns why it did not.
func handOver() (reason string) {
	self, err := os.Executable()
	if err != nil {
		return err.Error()
	}
	program, reason := cudaProgram(self, driverFiles)
	if reason != "" {
		return reason
	}
	err = syscall.Exec(program, os.Args, os.Environ())
	return fmt.Sprintf("%s: %v", program, err) // Exec returns only when it failed
}

// cudaProgram returns the program next to self to hand over to, or the reason why there is no such program.
func cudaProgram(self string, driverFiles []string) (path, reason string) {
	if os.Getenv(noCUDAEnv) != "" {
		return "", noCUDAEnv + " is set"
	}
	if !anyExists(driverFiles) {
		return "", "no NVIDIA driver"
	}
	self, err := filepath.EvalSymlinks(self) // the PATH may contain a link to bin/mgrpo
	if err != nil {
		return "", err.Error()
	}
	path = filepath.Join(filepath.Dir(self), "mgrpo-cuda")
	if _, err := os.Stat(path); err != nil {
		return "", "an NVIDIA driver is here, but not " + path + ": make build CUDA=1"
	}
	// The driver's files may exist while the driver refuses, for example if no GPU is visible to this process. Only the
	// program itself can find out.
	probe := exec.Command(path)
	probe.Env = append(os.Environ(), probeEnv+"=1")
	if out, err := probe.CombinedOutput(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return "", fmt.Sprintf("the NVIDIA driver does not answer: %.200s", out)
		}
		return "", err.Error()
	}
	return path, ""
}

func anyExists(paths []string) bool {
	for _, p := range paths {
		if _, err := os.Stat(p); err == nil {
			return true
		}
	}
	return false
}
