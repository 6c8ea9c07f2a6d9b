package main

import (
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda"
	"github.com/mgrpo/mgrpo/trainer/cgroup"
)

type versionCmd struct{}

func (versionCmd) Run() error { return printVersion(os.Stdout) }

func printVersion(w io.Writer) error {
	devices, err := cuda.Devices()
	if err != nil {
		return err
	}
	gpus := "not in use: " + cpuOnly
	if cpuOnly == "" {
		gpus = fmt.Sprintf("driver %s, %d devices", cuda.Driver(), len(devices))
	}
	_, err = fmt.Fprintf(w, "mgrpo     %s\nLibTorch  %s\nGo        %s %s/%s\nCPU       %s, %s\nCUDA      %s\n",
		version, torch.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH, cgroup.UsableCores(), torch.CPUFeatures(), gpus)
	for _, d := range devices {
		fmt.Fprintf(w, "          %v\n", d)
	}
	return err
}
