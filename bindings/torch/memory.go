package torch

// #include "mgrpo_torch.h"
import "C"

import (
	"context"
	"os"
	"strconv"
	"strings"
)

// Memory is how much memory is in use, in bytes.
type Memory struct {
	Allocated int64 // in live tensors: on CPU those of the whole process, on a GPU those of this process there
	Reserved  int64 // held from the system for tensors; on CPU equal to Allocated
	Peak      int64 // highest Allocated since the process started
	RSS       int64 // resident memory of the process, from /proc/self/status; 0 where there is none
	PeakRSS   int64 // highest RSS since the process started
}

// Memory returns how much memory tensors use now and did at most.
func (d *Device) Memory(ctx context.Context) (Memory, error) {
	var m Memory
	err := d.Do(ctx, func(s *Scope) error {
		r := C.mgt_memory(d.native)
		must("memory", r.error)
		m.Allocated, m.Reserved, m.Peak = int64(r.allocated), int64(r.reserved), int64(r.peak)
		return nil
	})
	m.RSS, m.PeakRSS = residentMemory()
	return m, err
}

func residentMemory() (now, peak int64) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch key {
		case "VmRSS":
			now = kib << 10
		case "VmHWM":
			peak = kib << 10
		}
	}
	return now, peak
}
