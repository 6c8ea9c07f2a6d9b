package main

import (
	"fmt"
	"runtime"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

type versionCmd struct{}

func (versionCmd) Run() error {
	fmt.Printf("mgrpo     %s\nLibTorch  %s\nGo        %s\nCPU       %s\n", version, torch.Version(), runtime.Version(), torch.CPUFeatures())
	return nil
}
