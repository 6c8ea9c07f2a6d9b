package torch

import (
	"context"
	"runtime"
	"testing"
)

// shareIdle calls SetIdleThreadLimit until the end of a test.
func shareIdle(t *testing.T, limit int) {
	SetIdleThreadLimit(limit)
	t.Cleanup(func() { SetIdleThreadLimit(0) })
}

// wantThreads checks the number of threads inside OnIdleThreads, and that the device has its own number again afterwards.
func wantThreads(t *testing.T, s *Scope, when string, want int) {
	t.Helper()
	s.OnIdleThreads(func() {
		if n := s.threads(); n != want {
			t.Errorf("%d threads %s, want %d", n, when, want)
		}
	})
	if n := s.threads(); n != s.dev.threads {
		t.Errorf("%d threads afterwards, want the device's own %d", n, s.dev.threads)
	}
}

// A device uses the threads of idle devices only inside OnIdleThreads.
func TestOnIdleThreads(t *testing.T) {
	a, b := openWith(t, "cpu", 1), openWith(t, "cpu", 2)
	do(t, a, func(s *Scope) { wantThreads(t, s, "where nothing is lent", 1) })
	shareIdle(t, 8)
	do(t, a, func(s *Scope) {
		wantThreads(t, s, "next to an idle device of 2", 3)
		do(t, b, func(s *Scope) { wantThreads(t, s, "next to a busy device", 2) })
		s.OnIdleThreads(func() {
			do(t, b, func(s *Scope) { wantThreads(t, s, "of a device that has lent its own", 2) })
		})
		wantThreads(t, s, "after the other's job", 3)
	})
	do(t, b, func(s *Scope) { wantThreads(t, s, "beside an idle device of 1", 3) })
	SetIdleThreadLimit(2)
	do(t, a, func(s *Scope) { wantThreads(t, s, "with a limit of 2", 2) })
	do(t, b, func(s *Scope) { wantThreads(t, s, "with a limit that it has itself", 2) })
	SetIdleThreadLimit(8)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	do(t, a, func(s *Scope) { wantThreads(t, s, "after the other device was closed", 1) })
}

func TestOnIdleThreadsThatPanics(t *testing.T) {
	a := openWith(t, "cpu", 1)
	openWith(t, "cpu", 1)
	shareIdle(t, 2)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was lost")
			}
		}()
		_ = a.Do(context.Background(), func(s *Scope) error {
			s.OnIdleThreads(func() { panic("boom") })
			return nil
		})
	}()
	do(t, a, func(s *Scope) { wantThreads(t, s, "after a panic", 2) })
}

// A device that moves to another thread has its own number of threads there, and the borrowed threads are returned.
func TestOnIdleThreadsThatExits(t *testing.T) {
	a := openWith(t, "cpu", 1)
	openWith(t, "cpu", 1)
	shareIdle(t, 2)
	left := make(chan struct{})
	go func() {
		defer close(left)
		_ = a.Do(context.Background(), func(s *Scope) error {
			s.OnIdleThreads(runtime.Goexit)
			return nil
		})
	}()
	<-left
	do(t, a, func(s *Scope) { wantThreads(t, s, "on another thread", 2) })
}
