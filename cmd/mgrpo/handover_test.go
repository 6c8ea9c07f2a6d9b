//go:build !cuda

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fakeProgram writes mgrpo-cuda into dir. It answers the probe with exit status probe, and
// otherwise prints its arguments and the value of WITNESS.
func fakeProgram(t *testing.T, dir string, probe int) string {
	t.Helper()
	path := filepath.Join(dir, "mgrpo-cuda")
	script := fmt.Sprintf(`#!/bin/sh
if [ -n "$%s" ]; then echo "no CUDA-capable device"; exit %d; fi
echo "took over: $* WITNESS=$WITNESS"
`, probeEnv, probe)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCUDAProgram(t *testing.T) {
	present := []string{filepath.Join(t.TempDir(), "absent"), t.TempDir()}
	for _, c := range []struct {
		name    string
		files   []string // of the NVIDIA driver
		probe   int      // exit status of the fake program; -1: no such program
		disable string
		reason  string // expected part of the reason; "" means handing over
	}{
		{"driver answers", present, 0, "", ""},
		{"no driver", present[:1], 0, "", "no NVIDIA driver"},
		{"driver refuses", present, 1, "", "does not answer: no CUDA-capable device"},
		{"CPU build only", present, -1, "", "make build CUDA=1"},
		{"switched off", present, 0, "1", noCUDAEnv + " is set"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(noCUDAEnv, c.disable)
			dir, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			self := filepath.Join(dir, "mgrpo")
			if err := os.WriteFile(self, nil, 0o755); err != nil {
				t.Fatal(err)
			}
			want := ""
			if c.probe >= 0 {
				want = fakeProgram(t, dir, c.probe)
			}
			if c.reason != "" {
				want = ""
			}
			link := filepath.Join(t.TempDir(), "mgrpo") // like a link in a folder on the PATH
			if err := os.Symlink(self, link); err != nil {
				t.Fatal(err)
			}
			path, reason := cudaProgram(link, c.files)
			if path != want || (reason == "") != (c.reason == "") || !strings.Contains(reason, c.reason) {
				t.Errorf("got %q, %q; want %q, ...%q...", path, reason, want, c.reason)
			}
		})
	}
}

// driverEnv names a file that this test program, run as bin/mgrpo, takes for a driver.
const driverEnv = "HANDOVER_TEST_DRIVER"

func TestHandOver(t *testing.T) {
	if file := os.Getenv(driverEnv); file != "" {
		driverFiles = []string{file}
		fmt.Println("stayed:", handOver())
		return
	}
	t.Setenv(noCUDAEnv, "")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	fake := fakeProgram(t, filepath.Dir(self), 0)
	defer os.Remove(fake)

	run := func(env ...string) string {
		cmd := exec.Command(self, "-test.run=^TestHandOver$")
		cmd.Env = append(append(os.Environ(), driverEnv+"="+t.TempDir(), "WITNESS=here"), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if got, want := run(), "took over: -test.run=^TestHandOver$ WITNESS=here\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := run(noCUDAEnv+"=1"), "stayed: "+noCUDAEnv+" is set"; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
