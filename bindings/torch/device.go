// Package torch calls LibTorch from Go. It has devices that own one OS thread each, scopes that own tensors, the operations of a decoder
// and its training, and autograd.
//
// All work of a device runs in Device.Do on the device's own thread. Operations panic with *Error there and
// Do returns it, so that model code reads like the formula it implements:
//
//	err := dev.Do(ctx, func(s *torch.Scope) error {
//		x := s.FromFloat32([]float32{1, 2, 3, 4}, 2, 2)
//		fmt.Println(x.MatMul(x).Sum().Item())
//		return nil
//	})
//
// A tensor dies with the scope it was made in unless kept; there are no finalizers. Use of a dropped tensor,
// use from another goroutine, and use outside of Do are an *Error. Gradients are recorded only within Scope.Grad.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package torch

// #include "mgrpo_torch.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
)

// ErrClosed is returned by Do and Memory of a closed device.
var ErrClosed = errors.New("torch: device is closed")

// Device is a CPU or GPU as seen by one OS thread, which does all of its work.
type Device struct {
	spec    string
	cuda    bool
	index   int
	threads int

	jobs    chan *job
	closing chan struct{} // closed by Close
	done    chan struct{} // closed when the thread has ended
	once    sync.Once

	thread atomic.Int64          // mgt_thread() of the owning thread
	scope  atomic.Pointer[Scope] // of the running Do, else nil

	// Touched on the device's thread only.
	native       *C.mgt_device
	kept         []*Tensor
	live         []*Tensor // spare storage for a Scope
	pendingDrops []uintptr // handles to be dropped, in storage that is used again; uintptr, because cgo would check each pointer
	lost         error     // why the thread cannot use the device; every Do returns it

	wait func() (text string) // waits for a GPU's work; returns its error message, or ""
}

// job is one call of Do for the device's thread.
type job struct {
	f      func(*Scope) error
	result chan outcome
}

type outcome struct {
	err      error
	panicked any  // a panic of f that is not an *Error; it is raised again in the caller
	exited   bool // f called runtime.Goexit, as testing's FailNow does
}

// Open starts a device: "cpu", "cuda" (the first GPU) or "cuda:N". threads is the number of OpenMP threads
// that CPU work of this device uses, at least 1; several CPU devices may divide the cores.
func Open(spec string, threads int) (*Device, error) {
	d := &Device{
		spec: spec, threads: threads,
		jobs: make(chan *job), closing: make(chan struct{}), done: make(chan struct{}),
	}
	switch kind, index, numbered := strings.Cut(spec, ":"); {
	case spec == "cpu":
	case kind == "cuda":
		d.cuda = true
		if numbered {
			n, err := strconv.ParseUint(index, 10, 8)
			if err != nil {
				return nil, fmt.Errorf("torch: open %q: %q is not a GPU number", spec, index)
			}
			d.index = int(n)
		}
		d.spec = "cuda:" + strconv.Itoa(d.index)
	default:
		return nil, fmt.Errorf("torch: open %q: a device is \"cpu\", \"cuda\" or \"cuda:N\"", spec)
	}
	if threads < 1 || threads > 1024 {
		return nil, fmt.Errorf("torch: open %q: %d threads; want 1 to 1024", spec, threads)
	}
	if err := checkLibrary(); err != nil {
		return nil, fmt.Errorf("torch: open %q: %w", spec, err)
	}
	if err := loadCUDA(); err != nil && d.cuda {
		return nil, fmt.Errorf("torch: open %q: %w", spec, err)
	}
	started := make(chan error)
	go d.ownThread(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("torch: open %q: %w", spec, err)
	}
	return d, nil
}

// checkLibrary refuses a LibTorch of another version than the package was compiled for, because each version has its own C++ ABI.
var checkLibrary = sync.OnceValue(func() error {
	built, loaded := C.GoString(C.mgt_built_version()), Version()
	if built != loaded {
		return fmt.Errorf("built for LibTorch %s but loaded %s: put the folder of version %s first on the library path, or build again",
			built, loaded, built)
	}
	return nil
})

// loadCUDA loads the CUDA part if an NVIDIA driver is installed. It runs once, before the first device of any kind, because LibTorch
// decides at its first use whether CUDA is available.
var loadCUDA = sync.OnceValue(func() error {
	if C.mgt_cuda_driver() == 0 {
		return errors.New("no NVIDIA driver (libcuda.so.1) on this machine: use device \"cpu\"")
	}
	gpus := C.mgt_cuda_load()
	if gpus.error != nil {
		return errors.New("the CUDA part cannot be loaded: " + message(gpus.error))
	}
	if gpus.value == 0 {
		return errors.New("the NVIDIA driver reports no GPU: use device \"cpu\"")
	}
	return nil
})

// ownThread runs in the goroutine that owns the OS thread: it opens the native device, does jobs in the order of their arrival, and closes
// the device.
func (d *Device) ownThread(started chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	opened := C.mgt_device_open(cbool(d.cuda), C.int(d.index), C.int(d.threads))
	if opened.error != nil {
		started <- errors.New(message(opened.error))
		return
	}
	d.native = (*C.mgt_device)(opened.value)
	d.wait = func() string { return message(C.mgt_device_wait(d.native)) }
	d.thread.Store(int64(C.mgt_thread()))
	if !d.cuda {
		cpuThreads.addShare(d.threads)
	}
	started <- nil
	d.serve()
}

func (d *Device) serve() {
	// A job that calls runtime.Goexit ends this goroutine and its thread. Another one continues.
	finished := false
	defer func() {
		if !finished {
			go d.resume()
		}
	}()
	for {
		select {
		case j := <-d.jobs:
			d.do(j)
		case <-d.closing:
			finished = true
			d.shutdown()
			return
		}
	}
}

// resume continues with the native device on a new thread.
func (d *Device) resume() {
	runtime.LockOSThread()
	if text := message(C.mgt_device_move(d.native)); text != "" {
		d.lost = fmt.Errorf("torch: %s: a new thread cannot take it over: %s", d.spec, text)
	}
	d.thread.Store(int64(C.mgt_thread()))
	d.serve()
}

func (d *Device) shutdown() {
	for _, t := range d.kept {
		d.queueDrop(t)
	}
	d.kept = nil
	d.flushDrops()
	C.mgt_device_close(d.native)
	if !d.cuda {
		cpuThreads.addShare(-d.threads)
	}
	close(d.done)
}

// do runs one job in a new scope and stores its result.
func (d *Device) do(j *job) {
	if d.lost != nil {
		j.result <- outcome{err: d.lost}
		return
	}
	d.begin()
	s := &Scope{dev: d, live: d.live[:0]}
	d.scope.Store(s)
	C.mgt_set_grad_mode(0)
	out := outcome{exited: true}
	defer func() {
		if p := recover(); p != nil {
			out = outcome{panicked: p}
			if e, ok := p.(*Error); ok {
				out = outcome{err: e}
			}
		}
		s.close()
		d.scope.Store(nil)
		if out.err != nil && d.lost == nil {
			if text := d.wait(); text != "" {
				d.lost = &LostError{Device: d.spec, Cause: strings.TrimSpace(text)}
				out.err = fmt.Errorf("%w: %w", d.lost, out.err)
			}
		}
		d.end()
		j.result <- out
	}()
	out = outcome{err: j.f(s)}
}

// Do runs f on the device's thread and returns its error. Calls run one after the other. ctx only ends the wait for the
// thread; it does not interrupt f. Tensors that f makes are dropped when f ends, unless they are kept. Grad mode is off at
// first. If an operation inside f fails, f ends and Do returns the *Error. Any other panic of f continues in the goroutine
// that called Do. Do inside a Do of the same device is an error. Do of another device is allowed there, but two devices
// must not wait for each other. If the process has lost the GPU, this call and all later ones return a *LostError.
func (d *Device) Do(ctx context.Context, f func(s *Scope) error) error {
	if d.onThread() {
		return &Error{Op: "do", Message: "called inside Do of the same device: use the scope at hand"}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	j := &job{f: f, result: make(chan outcome, 1)}
	select {
	case <-d.closing:
		return ErrClosed
	default:
	}
	select {
	case d.jobs <- j:
	case <-ctx.Done():
		return ctx.Err()
	case <-d.closing:
		return ErrClosed
	}
	out := <-j.result
	switch {
	case out.panicked != nil:
		panic(out.panicked)
	case out.exited:
		runtime.Goexit()
	}
	return out.err
}

// onThread reports whether the caller runs inside Do of d.
func (d *Device) onThread() bool { return int64(C.mgt_thread()) == d.thread.Load() }

// Close waits for the running Do, drops all kept tensors and ends the device's thread. A GPU gets back the memory that no tensor of the
// process uses. Further calls have no effect.
func (d *Device) Close() error {
	if d.onThread() {
		return &Error{Op: "close", Message: "called inside Do of the same device"}
	}
	d.once.Do(func() { close(d.closing) })
	<-d.done
	return nil
}

// Spec returns the device's name, "cpu" or "cuda:N".
func (d *Device) Spec() string { return d.spec }

// IsCUDA reports whether the device is a GPU.
func (d *Device) IsCUDA() bool { return d.cuda }

// Index returns the GPU's number, 0 for a CPU.
func (d *Device) Index() int { return d.index }

// Threads returns the number of OpenMP threads of CPU work on this device.
func (d *Device) Threads() int { return d.threads }

// queueDrop marks t as dropped, and puts its handle into d.pendingDrops.
func (d *Device) queueDrop(t *Tensor) {
	d.pendingDrops = append(d.pendingDrops, uintptr(t.handle))
	t.handle = nil
}

// flushDrops drops the handles in d.pendingDrops.
func (d *Device) flushDrops() {
	if len(d.pendingDrops) > 0 {
		C.mgt_drop((*unsafe.Pointer)(unsafe.Pointer(&d.pendingDrops[0])), C.int64_t(len(d.pendingDrops)))
		d.pendingDrops = d.pendingDrops[:0]
	}
}
