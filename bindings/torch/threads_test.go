package torch

import (
	"context"
	"testing"
)

// A device computes on the threads of those that are idle, if it says so, and only then.
func TestOnIdleThreads(t *testing.T) {
	a, b := openWith(t, "cpu", 1), openWith(t, "cpu", 2)
	threads := func(s *Scope) (n int) {
		s.OnIdleThreads(func() { n = s.threads() })
		return n
	}
	do(t, a, func(s *Scope) {
		if n := threads(s); n != 3 {
			t.Errorf("%d threads beside an idle device of 2, want 3", n)
		}
		if n := s.threads(); n != 1 {
			t.Errorf("%d threads afterwards, want the device's own", n)
		}
		do(t, b, func(s *Scope) {
			if n := threads(s); n != 2 {
				t.Errorf("%d threads beside a busy device, want the device's own 2", n)
			}
		})
		s.OnIdleThreads(func() {
			do(t, b, func(s *Scope) { // what is lent is back when the borrower ends
				if n := threads(s); n != 2 {
					t.Errorf("%d threads of a device that has lent its own, want 2", n)
				}
			})
		})
	})
	do(t, b, func(s *Scope) {
		if n := threads(s); n != 3 {
			t.Errorf("%d threads beside an idle device of 1, want 3", n)
		}
	})
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	do(t, a, func(s *Scope) {
		if n := threads(s); n != 1 {
			t.Errorf("%d threads after the other device was closed, want 1", n)
		}
	})
}

func TestOnIdleThreadsThatPanics(t *testing.T) {
	a := openWith(t, "cpu", 1)
	openWith(t, "cpu", 1)
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
	do(t, a, func(s *Scope) {
		if n := s.threads(); n != 1 {
			t.Errorf("%d threads after a panic, want 1", n)
		}
	})
	if cores.used != 0 {
		t.Errorf("%d threads are still taken", cores.used)
	}
}
