package local

import (
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/bindings/torch/emulated"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// TestWorkOfADecodePass counts the work that a decode pass gives to a GPU if each of eight sequences begins a block. A captured pass is one
// copy, one launch and one wait. Otherwise each operation is a launch, and the settings of sampling are a second copy.
func TestWorkOfADecodePass(t *testing.T) {
	devices := cudatest.Devices(t)
	if len(devices) < 2 {
		t.Skip("no GPU")
	}
	for _, c := range []struct {
		name  string
		plain bool
		want  emulated.Work
	}{
		{"captured", false, emulated.Work{Launches: 1, Uploads: 1, Waits: 1}},
		{"one by one", true, emulated.Work{Launches: 25, Uploads: 2, Waits: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tenant := testEngine(t, testModelOn(t, devices[1], 1, false), Options{Slots: 8, NoGraphs: c.plain})
			e, all := tenant.engine, make([]*sequence, 8)
			for i := range all {
				all[i] = &sequence{tenant: tenant, state: slotState{slot: i, listed: make([]int, 1)}}
			}
			// decodeAt runs a decode pass in which every row has this position, the first of a block.
			decodeAt := func(s *torch.Scope, position int) {
				for _, q := range all {
					q.tokens, q.state.filled = make([]int32, position+1), position
					if q.state.cached == nil {
						q.state.cached, _ = e.pages.open(tenant, q.tokens, prefix{})
					}
					if !e.pages.extend(q.state.cached, position+1) {
						t.Fatal("no block is free")
					}
				}
				tokens, err := e.executor.compute(s, planBatch(all, 8))
				if err != nil || len(tokens) != len(all) {
					t.Fatalf("%d tokens, %v", len(tokens), err)
				}
			}
			err := e.dev.Do(t.Context(), func(s *torch.Scope) error {
				decodeAt(s, 0) // the engine captures this pass unless it runs operations one by one
				if got := emulated.Count(t, func() { decodeAt(s, arch.CacheBlock) }); got != c.want {
					t.Errorf("work of a pass: got %+v, want %+v", got, c.want)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
