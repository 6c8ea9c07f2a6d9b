package archive

import (
	"context"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// Saving runs the jobs that write checkpoints while the steps continue, one job after the other. After a failed job no
// other job runs.
type Saving struct {
	last *saveJob // nil: there was no job

	mu     sync.Mutex
	took   float64 // seconds from copy to completion, for the checkpoints completed since the last record
	waited float64 // seconds that steps waited for checkpoints since the last record
}

type saveJob struct {
	done chan struct{}
	err  error // valid once done is closed
}

// begin starts a job, which runs when the previous job has ended.
func (s *Saving) begin(f func() error) {
	before, j := s.last, &saveJob{done: make(chan struct{})}
	s.last = j
	go func() {
		defer close(j.done)
		if before != nil {
			<-before.done
			if j.err = before.err; j.err != nil {
				return
			}
		}
		j.err = f()
	}()
}

// Wait waits until no checkpoint is in progress, and returns the first error.
func (s *Saving) Wait(ctx context.Context) error {
	if s.last == nil {
		return nil
	}
	select {
	case <-s.last.done:
		return s.last.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Failed returns the error of the last checkpoint, or nil while it is in progress.
func (s *Saving) Failed() error {
	if s.last == nil {
		return nil
	}
	select {
	case <-s.last.done:
		return s.last.err
	default:
		return nil
	}
}

// Drain waits until no checkpoint is in progress, and ignores errors.
func (s *Saving) Drain() {
	if s.last != nil {
		<-s.last.done
	}
}

func (s *Saving) count(seconds *float64, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*seconds += time.Since(since).Seconds()
}

// Describe adds the times of the checkpoints since the last record to a record.
func (s *Saving) Describe(values map[string]float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, seconds := range map[string]*float64{metrics.CheckpointSeconds: &s.took, metrics.CheckpointWaitSeconds: &s.waited} {
		if *seconds > 0 {
			values[name] = *seconds
		}
		*seconds = 0
	}
}

// snapshot is a copy of the weights and moments from which a checkpoint is written while training continues. Its memory is
// outside Go's heap: a larger heap would make the garbage collector run later and keep more garbage. The memory is
// allocated once, because allocating it takes longer than copying.
type snapshot struct {
	mapped []byte
	master []float32 // the weights
	m, v   []float32 // AdamW's moments
}

func newSnapshot(numel int64) (*snapshot, error) {
	bytes := 3 * 4 * numel
	mapped, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("allocating %d bytes for the copy of weights and moments that checkpoints are written from: %w", bytes, err)
	}
	all := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(mapped))), 3*numel)
	return &snapshot{mapped, all[:numel], all[numel : 2*numel], all[2*numel:]}, nil
}

func (c *snapshot) free() error { return unix.Munmap(c.mapped) }

// reader returns a function that reads a copied buffer. The function fails once ctx has ended.
func (c *snapshot) reader(ctx context.Context, buffer []float32) func(from int64, dst []float32) error {
	return func(from int64, dst []float32) error {
		copy(dst, buffer[from:])
		return context.Cause(ctx)
	}
}
