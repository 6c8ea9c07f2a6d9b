package torch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestOpenRefuses(t *testing.T) {
	for spec, want := range map[string]string{"": `a device is "cpu"`, "tpu": `a device is "cpu"`, "cuda:x": "not a GPU number", "cpu:1": `a device is "cpu"`} {
		_, err := Open(spec, 1)
		wantMessage(t, err, want)
	}
	_, err := Open("cpu", 0)
	wantMessage(t, err, "want 1 to 1024")
	if loadCUDA() != nil {
		_, err = Open("cuda:0", 1)
		wantMessage(t, err, `open "cuda:0"`)
	}
}

func TestVersionAndFeatures(t *testing.T) {
	if !strings.HasPrefix(Version(), "2.11.") {
		t.Errorf("LibTorch %q", Version())
	}
	if runtime.GOARCH == "amd64" && CPUFeatures() == "" {
		t.Log("this CPU has no vector extensions")
	}
}

func TestDoReturnsErrorsAndRaisesPanics(t *testing.T) {
	d := open(t)
	mine := errors.New("mine")
	if err := d.Do(context.Background(), func(*Scope) error { return mine }); err != mine {
		t.Errorf("got %v", err)
	}
	func() {
		defer func() {
			if p := recover(); p != "boom" {
				t.Errorf("recovered %v, want the panic of f", p)
			}
		}()
		_ = d.Do(context.Background(), func(s *Scope) error { s.Zeros(Float32, 3); panic("boom") })
	}()
	do(t, d, func(s *Scope) { s.Zeros(Float32, 1) })
}

func TestDoInsideDoIsAnError(t *testing.T) {
	d, other := open(t), open(t)
	do(t, d, func(s *Scope) {
		wantMessage(t, d.Do(context.Background(), func(*Scope) error { return nil }), "inside Do of the same device")
		wantMessage(t, d.Close(), "inside Do of the same device")
		if err := other.Do(context.Background(), func(s *Scope) error { s.Zeros(Float32, 1); return nil }); err != nil {
			t.Error(err)
		}
	})
}

// testing's FailNow exits with runtime.Goexit. The caller must exit too, and the device must keep working.
func TestGoexitInsideDo(t *testing.T) {
	d := open(t)
	var kept *Tensor
	do(t, d, func(s *Scope) { kept = s.Keep(s.Full(Float32, 3, 1)) })
	returned := false
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = d.Do(context.Background(), func(*Scope) error { runtime.Goexit(); return nil })
		returned = true
	}()
	<-done
	if returned {
		t.Error("Do returned although its function left the goroutine")
	}
	do(t, d, func(s *Scope) {
		if kept.Item() != 3 {
			t.Error("kept tensor lost")
		}
	})
}

func TestContextEndsTheWait(t *testing.T) {
	d := open(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := d.Do(ctx, func(*Scope) error { t.Error("ran"); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	do(t, d, func(*Scope) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		waited := make(chan error)
		go func() { waited <- d.Do(ctx, func(*Scope) error { t.Error("ran"); return nil }) }()
		if err := <-waited; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestClose(t *testing.T) {
	before := liveHandles()
	d, err := Open("cpu", 2)
	if err != nil {
		t.Fatal(err)
	}
	var kept *Tensor
	do(t, d, func(s *Scope) { kept = s.Keep(s.Zeros(Float32, 4)) })
	for range 2 {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := liveHandles() - before; n != 0 {
		t.Errorf("%d handles left", n)
	}
	if err := d.Do(context.Background(), func(*Scope) error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	if _, err := d.Memory(context.Background()); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	kept.Drop()
	wantPanic(t, "outside Do", func() { kept.Sum() })
}

func wantPanic(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		e, _ := recover().(*Error)
		if e == nil {
			t.Fatal("no *Error")
		}
		wantMessage(t, e, want)
	}()
	f()
}

func TestManyGoroutines(t *testing.T) {
	d := open(t)
	var wait sync.WaitGroup
	running := 0
	for i := range 50 {
		wait.Go(func() {
			err := d.Do(context.Background(), func(s *Scope) error {
				running++
				if running != 1 {
					t.Error("two functions ran at once")
				}
				defer func() { running-- }()
				if got := s.Full(Float32, float64(i), 8).Sum().Item(); got != float64(8*i) {
					t.Errorf("sum is %g, want %d", got, 8*i)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
}

func TestMemoryCountsLiveTensors(t *testing.T) {
	d := open(t)
	read := func() Memory {
		m, err := d.Memory(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	before := read()
	var kept *Tensor
	do(t, d, func(s *Scope) { kept = s.Keep(s.Zeros(Float32, 1<<20)) })
	with := read()
	if grown := with.Allocated - before.Allocated; grown < 4<<20 || grown > 4<<20+1<<16 {
		t.Errorf("4 MiB tensor counted as %d bytes", grown)
	}
	do(t, d, func(s *Scope) { kept.Drop() })
	after := read()
	if after.Allocated != before.Allocated || after.Peak < with.Allocated || after.RSS <= 0 || after.PeakRSS < after.RSS {
		t.Errorf("before %+v, with %+v, after %+v", before, with, after)
	}
}

// A large kept tensor asks Linux for large pages, and no other tensor does: the flag hg of its mapping.
func TestKeptTensorsAreInLargePages(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage/enabled"); err != nil {
		t.Skip("this Linux has no large pages")
	}
	d := openOn(t, "cpu")
	do(t, d, func(s *Scope) {
		zeros, empty, short := KeptZeros(s, Float32, 1<<22), KeptEmpty(s, Float32, 1<<22), s.Empty(Float32, 1<<22)
		if v := float64s(zeros); slices.Min(v) != 0 || slices.Max(v) != 0 {
			t.Error("KeptZeros made other numbers than 0")
		}
		for _, c := range []struct {
			what  string
			t     *Tensor
			large bool
		}{{"KeptZeros", zeros, true}, {"KeptEmpty", empty, true}, {"Empty", short, false}} {
			if got := advisedLargePages(t, uintptr(c.t.Ptr())+8<<20); got != c.large {
				t.Errorf("%s: in large pages: %v, want %v", c.what, got, c.large)
			}
		}
		zeros.Drop()
		empty.Drop()
	})
}

// advisedLargePages reports whether the mapping of an address has the flag hg in /proc/self/smaps.
func advisedLargePages(t *testing.T, address uintptr) bool {
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(string(smaps)) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			inside = from <= address && address < to
		}
		if flags, found := strings.CutPrefix(line, "VmFlags:"); found && inside {
			return slices.Contains(strings.Fields(flags), "hg")
		}
	}
	t.Fatalf("no mapping contains %x", address)
	return false
}

// TestCapture checks that a replay computes from the current contents of the inputs, and that a CPU refuses to capture.
func TestCapture(t *testing.T) {
	onDevices(t, func(t *testing.T, d *Device) {
		if !d.IsCUDA() {
			do(t, d, func(s *Scope) {
				if g, err := s.Capture(func() {}); g != nil || err == nil || !strings.Contains(err.Error(), "on GPUs alone") {
					t.Errorf("got %v, %v", g, err)
				}
			})
			return
		}
		do(t, d, func(s *Scope) {
			x := s.Full(Float32, 2, 3)
			var y *Tensor
			g, err := s.Capture(func() { y = x.Mul(x) })
			if err != nil {
				t.Fatal(err)
			}
			defer g.Drop()
			x.Fill_(3)
			g.Replay()
			if got := float64s(y); got[0] != 9 {
				t.Errorf("replayed: %v", got)
			}
			for what, work := range map[string]func(){
				"fails":                         func() { x.View(2, 2) },
				"fails while it is captured":    failsAgain(func() { x.View(2, 2) }),
				"waits, which ends the capture": func() { x.Sum().Item() },
			} {
				if _, err := s.Capture(work); err == nil {
					t.Errorf("work that %s was captured", what)
				}
				if got := x.Add(x).Sum().Item(); got != 18 {
					t.Errorf("after work that %s: %v", what, got)
				}
			}
			again, err := s.Capture(func() { y = x.Add(x) })
			if err != nil {
				t.Fatalf("after captures that failed: %v", err)
			}
			defer again.Drop()
			again.Replay()
			if got := float64s(y); got[0] != 6 {
				t.Errorf("replayed after captures that failed: %v", got)
			}
		})
	})
}

// failsAgain returns a function that has no effect on the first call and calls f after that.
func failsAgain(f func()) func() {
	before := false
	return func() {
		if before {
			f()
		}
		before = true
	}
}

// A device is lost if it still fails after an error; if it works again, it is not lost.
func TestLostDevice(t *testing.T) {
	d := openOn(t, "cpu")
	fails := func(s *Scope) error { s.Full(Float32, 1, 3).View(2, 2); return nil }
	var lost *LostError
	if err := d.Do(t.Context(), fails); err == nil || errors.As(err, &lost) {
		t.Fatalf("got %v", err)
	}
	d.wait = func() string { return "CUDA error: an illegal memory access was encountered\n" }
	do(t, d, func(*Scope) {}) // no operation has failed
	var op *Error
	if err := d.Do(t.Context(), fails); !errors.As(err, &lost) || !errors.As(err, &op) || op.Op != "view" || lost.Device != "cpu" ||
		lost.Cause != "CUDA error: an illegal memory access was encountered" {
		t.Fatalf("got %v", err)
	}
	ran := false
	if err := d.Do(t.Context(), func(*Scope) error { ran = true; return nil }); !errors.As(err, &lost) || ran {
		t.Errorf("after that: %v, ran: %v", err, ran)
	}
}

// Close frees a device's unused memory for other processes on the GPU.
func TestCloseReturnsMemory(t *testing.T) {
	needGPU(t)
	first, second := openOn(t, "cuda"), openOn(t, "cuda")
	const size = 256 << 20
	if err := first.Do(t.Context(), func(s *Scope) error { s.Full(Float32, 1, size/4); return nil }); err != nil {
		t.Fatal(err)
	}
	before, err := second.Memory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if before.Reserved-before.Allocated < size {
		t.Skip("an emulated GPU does not cache memory")
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if after, err := second.Memory(t.Context()); err != nil || after.Reserved > before.Reserved-size {
		t.Errorf("%d bytes are reserved after Close, %d before: %v", after.Reserved, before.Reserved, err)
	}
}

// After an index outside a tensor the process can no longer use the GPU, so the test runs in a child process.
func TestLostGPU(t *testing.T) {
	const child = "MGRPO_TEST_LOSES_GPU"
	if os.Getenv(child) == "" {
		needGPU(t)
		c := exec.Command(os.Args[0], "-test.run=^TestLostGPU$", "-test.v")
		c.Env = append(os.Environ(), child+"=1")
		if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: TestLostGPU") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	d := openOn(t, "cuda")
	for _, f := range []func(s *Scope){
		func(s *Scope) { s.Full(Float32, 1, 3).IndexSelect(0, s.FromInt32([]int32{1 << 20}, 1)).Sum().Item() },
		func(s *Scope) { s.Full(Float32, 1, 3) },
	} {
		var lost *LostError
		if err := d.Do(t.Context(), func(s *Scope) error { f(s); return nil }); !errors.As(err, &lost) {
			t.Errorf("got %v", err)
		}
	}
}
