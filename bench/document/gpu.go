package main

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/mgrpo/mgrpo/bench/measure"
)

// hotKernels holds the results of bench/gpu/first.py on a GPU, and what bench/gpu/call.py recorded of the call that ran it.
type hotKernels struct {
	Copy  float64   `json:"copy_bytes_per_second"`
	Cases []hotCase `json:"cases"`
	Call  *hotCall  `json:"-"`
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
		h.Call, err = measure.ReadPart[hotCall](filepath.Join(dir, "call-"+slug+".json"))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	h.Call.Program = strings.Join(strings.Fields(h.Call.Program), " ")
	return h, nil
}
