//go:build cuda

package cuda

import (
	"errors"
	"time"
	"unsafe"

	"gorgonia.org/cu"
)

// Timer measures the GPU time between two points of a stream.
type Timer struct {
	index       int
	gpu         cu.Device
	stream      cu.Stream
	start, stop cu.Event
}

// NewTimer returns a timer for work on the given CUDA stream (nil: the default stream) of GPU index. It keeps the primary context, with
// which its events would end, until Close.
func NewTimer(index int, stream unsafe.Pointer) (*Timer, error) {
	gpu, _, err := retain(index)
	if err != nil {
		return nil, err
	}
	t := &Timer{index: index, gpu: gpu, stream: streamOf(stream)}
	err = onDevice(index, func() (err error) {
		if t.start, err = cu.MakeEvent(cu.DefaultEvent); err != nil {
			return err
		}
		if t.stop, err = cu.MakeEvent(cu.DefaultEvent); err != nil {
			return errors.Join(err, cu.DestroyEvent(&t.start))
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, gpu.ReleasePrimaryCtx())
	}
	return t, nil
}

// streamOf returns a stream of another library as a cu.Stream. cu has no constructor for it. The conversion only compiles if a cu.Stream
// holds just a CUstream.
func streamOf(stream unsafe.Pointer) cu.Stream {
	var _ [unsafe.Sizeof(cu.Stream{})]byte = [unsafe.Sizeof(stream)]byte{}
	return *(*cu.Stream)(unsafe.Pointer(&stream))
}

// Start marks the beginning.
func (t *Timer) Start() error {
	return onDevice(t.index, func() error { return t.start.Record(t.stream) })
}

// Stop marks the end, waits for the work before it and returns the time since Start.
func (t *Timer) Stop() (elapsed time.Duration, err error) {
	err = onDevice(t.index, func() error {
		if err := t.stop.Record(t.stream); err != nil {
			return err
		}
		if err := t.stop.Synchronize(); err != nil {
			return err
		}
		ms, err := t.start.Elapsed(t.stop)
		elapsed = time.Duration(ms * float64(time.Millisecond))
		return err
	})
	return elapsed, err
}

// Close frees the timer.
func (t *Timer) Close() error {
	err := onDevice(t.index, func() error { return errors.Join(cu.DestroyEvent(&t.start), cu.DestroyEvent(&t.stop)) })
	return errors.Join(err, t.gpu.ReleasePrimaryCtx())
}
