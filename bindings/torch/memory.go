package torch

// #include "mgrpo_torch.h"
import "C"

import (
	"context"
	"os"
	"strconv"
	"strings"
)

// Memory holds the memory in use, in bytes.
type Memory struct {
	Allocated int64 // in live tensors: on a CPU of the whole process, on a GPU of this process on that GPU
	Reserved  int64 // allocated from the system for tensors; on a CPU equal to Allocated
	Peak      int64 // highest Allocated since the process started or Scope.ResetPeak was called
	RSS       int64 // resident memory of the process, from /proc/self/status; 0 without that file
	PeakRSS   int64 // highest RSS since the process started
}

// Memory returns the current and the peak memory of tensors and of the process.
func (d *Device) Memory(ctx context.Context) (m Memory, err error) {
	err = d.Do(ctx, func(s *Scope) error {
		m = s.Memory()
		return nil
	})
	m.RSS, m.PeakRSS = residentMemory()
	return m, err
}

// Memory returns Device.Memory inside a Do, without RSS and PeakRSS, which take longer to read.
func (s *Scope) Memory() (m Memory) {
	s.current("memory")
	r := C.mgt_memory(s.dev.native)
	must("memory", r.error)
	m.Allocated, m.Reserved, m.Peak = int64(r.allocated), int64(r.reserved), int64(r.peak)
	return m
}

// ResetPeak sets Memory's Peak to the current memory.
func (s *Scope) ResetPeak() {
	s.current("reset peak")
	must("reset peak", C.mgt_reset_peak(s.dev.native))
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
