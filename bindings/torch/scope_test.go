package torch

import (
	"context"
	"testing"
)

func TestTensorsDieWithTheirScope(t *testing.T) {
	d := open(t)
	var gone, kept, hoisted *Tensor
	var stale *Scope
	do(t, d, func(s *Scope) {
		stale = s
		start := liveHandles()
		outer := s.Full(Float32, 1, 2)
		s.Scoped(func() {
			gone = outer.Scale(2)
			s.Scoped(func() {
				hoisted = s.Hoist(outer.Scale(3))
				kept = s.Keep(outer.Scale(4))
				outer.Scale(5)
			})
			if n := liveHandles() - start; n != 4 {
				t.Errorf("%d handles alive, want outer, gone, hoisted and kept", n)
			}
			if hoisted.Sum().Item() != 6 {
				t.Error("the hoisted tensor has different values")
			}
		})
		if n := liveHandles() - start; n != 2 {
			t.Errorf("%d handles alive, want outer and kept", n)
		}
	})
	for name, x := range map[string]*Tensor{"gone": gone, "hoisted": hoisted} {
		wantMessage(t, failure(t, d, func(s *Scope) { x.Sum() }), "after it was dropped")
		wantMessage(t, failure(t, d, func(s *Scope) { s.Zeros(Float32, 2).Add(x) }), "after it was dropped")
		if x.Size(0) != 2 {
			t.Errorf("%s: the shape was lost", name)
		}
	}
	do(t, d, func(s *Scope) {
		if kept.Sum().Item() != 8 {
			t.Error("the kept tensor has different values")
		}
		kept.Drop()
		kept.Drop()
	})
	wantMessage(t, failure(t, d, func(s *Scope) { kept.Sum() }), "after it was dropped")
	wantMessage(t, failure(t, d, func(s *Scope) { stale.Zeros(Float32, 1) }), "scope has ended")
}

func TestKeepAndDropInAnyOrder(t *testing.T) {
	d := open(t)
	start := liveHandles()
	var ts []*Tensor
	do(t, d, func(s *Scope) {
		for i := range 5 {
			ts = append(ts, s.Keep(s.Keep(s.Full(Float32, float64(i), 1))))
		}
		s.Zeros(Float32, 1).Drop()
	})
	do(t, d, func(s *Scope) {
		for _, i := range []int{0, 4, 2} {
			ts[i].Drop()
		}
		if ts[1].Item() != 1 || ts[3].Item() != 3 {
			t.Error("the wrong tensors were dropped")
		}
		ts[3].Drop()
	})
	if n := liveHandles() - start; n != 1 {
		t.Errorf("%d handles alive, want 1", n)
	}
}

func TestScopedCleansUpAfterPanics(t *testing.T) {
	d := open(t)
	start := liveHandles()
	do(t, d, func(s *Scope) {
		func() {
			defer func() { recover() }()
			s.Scoped(func() {
				s.Zeros(Float32, 1)
				panic("out")
			})
		}()
		if n := liveHandles() - start; n != 0 {
			t.Errorf("%d handles alive", n)
		}
	})
}

func TestTensorsOfOthersAreErrors(t *testing.T) {
	d, other := open(t), open(t)
	var theirs *Tensor
	do(t, other, func(s *Scope) { theirs = s.Keep(s.Full(Float32, 2, 2)) })
	wantMessage(t, failure(t, d, func(s *Scope) { s.Zeros(Float32, 2).Add(theirs) }), "another device")
	wantMessage(t, failure(t, d, func(s *Scope) { theirs.Sum() }), "outside Do")
	do(t, d, func(s *Scope) {
		mine := s.Zeros(Float64, 2)
		mine.CopyFrom(theirs)
		if mine.Sum().Item() != 4 {
			t.Error("wrong sum after a copy between devices")
		}
	})
	// Uses s on another goroutine while Do runs.
	do(t, d, func(s *Scope) {
		x := s.Full(Float32, 1, 2)
		done := make(chan any)
		go func() {
			defer func() { done <- recover() }()
			x.Scale(2)
		}()
		if e, _ := (<-done).(*Error); e == nil {
			t.Error("an operation on another goroutine succeeded")
		}
		if err := other.Do(context.Background(), func(*Scope) error { x.Scale(2); return nil }); err == nil {
			t.Error("an operation inside Do of another device succeeded")
		}
	})
}
