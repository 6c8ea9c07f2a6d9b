package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/mgrpo/mgrpo/bench/measure"
)

// hotKernels holds the results of bench/gpu/first.py on a GPU, and what bench/gpu/call.py recorded of the call that ran it.
type hotKernels struct {
	Copy  float64   `json:"copy_bytes_per_second"`
	Cases []hotCase `json:"cases"`
	call  *hotCall
}

type hotCall struct{ Begun, Driver, Program, Torch string }

// hotCase is a kernel at one size. Times are in microseconds.
type hotCase struct {
	Name   string
	OK     bool
	Failed string // an exception of the case; "": none
	Error  float64
	Taken  float64 `json:"us"`
	Floors float64 `json:"x_floor"`
	Eager  float64 `json:"eager_us"` // 0: no operator of PyTorch does the same
}

// readHotKernels reads hot-SLUG.json and call-SLUG.json of a folder. It returns nil if the machine has none.
func readHotKernels(dir, slug string) (*hotKernels, error) {
	h, err := measure.ReadPart[hotKernels](filepath.Join(dir, "hot-"+slug+".json"))
	if err == nil {
		h.call, err = measure.ReadPart[hotCall](filepath.Join(dir, "call-"+slug+".json"))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return h, err
}

func (h *hotKernels) write(b *strings.Builder) {
	caption := fmt.Sprintf("Measured by `bench/gpu/first.py` on %s UTC with %s, PyTorch %s and driver %s. The cache holds other data before each of "+
		"15 calls, and the median counts. The floor is the time of a copy (%.2f TB/s) for the bytes that a kernel must move. The error is the "+
		"distance from float64, relative to float64's norm.",
		h.call.Begun, strings.Join(strings.Fields(h.call.Program), " "), h.call.Torch, h.call.Driver, h.Copy/1e12)
	fmt.Fprintf(b, "\n### Hot kernels\n\n%s\n\n| kernel | error | time | × floor | eager PyTorch | × eager |\n|---|---|---|---|---|---|\n", caption)
	for _, c := range h.Cases {
		if c.Failed != "" || !c.OK {
			fmt.Fprintf(b, "| %s | wrong: %s | | | | |\n", c.Name, c.Failed)
			continue
		}
		eager, ratio := "", ""
		if c.Eager > 0 {
			eager, ratio = measure.Seconds(c.Eager/1e6), fmt.Sprintf("%.2f", c.Eager/c.Taken)
		}
		fmt.Fprintf(b, "| %s | %.0e | %s | %.2f | %s | %s |\n", c.Name, c.Error, measure.Seconds(c.Taken/1e6), c.Floors, eager, ratio)
	}
}
