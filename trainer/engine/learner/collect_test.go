package learner

import (
	"context"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
)

// The bf16 gradient of a micro-batch is added without a float32 copy, because no memory plan counts one.
func TestCollectGradientMakesNoCopy(t *testing.T) { cudatest.Each(t, testCollectGradientMakesNoCopy) }

func testCollectGradientMakesNoCopy(t *testing.T, device string) {
	ctx := context.Background()
	dev, err := torch.Open(device, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	peak := func() int64 {
		m, err := dev.Memory(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return m.Peak
	}
	const n = 1<<24 + 3
	blocks := []ranks.Block{{Span: ranks.Span{To: n}}}
	p := &passes{grad: &gradient{}, division: &division{model: &model.Model{Device: dev}, group: group{ranks.Solo{}}, share: ranks.ShareOf(blocks, 0, 1)}}
	err = dev.Do(ctx, func(s *torch.Scope) error {
		flat := s.Keep(s.Full(torch.BFloat16, 2, n))
		p.grad.sum, p.grad.part = s.Keep(s.Full(torch.Float32, 0.5, n)), &microGradient{flat: flat, places: []ranks.Placement{{Block: blocks[0], Room: n}}}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	before := peak()
	var added, left float64
	err = p.run(ctx, passSeries{model: p.model, n: 1, backward: true})
	if grown := peak() - before; err != nil || grown > 8<<20 {
		t.Errorf("%v: the peak grew by %d MB for %d MB of gradient", err, grown>>20, 4*n>>20)
	}
	err = dev.Do(ctx, func(s *torch.Scope) error {
		added, left = p.grad.sum.Sum().Item(), p.grad.part.flat.Sum().Item()
		return nil
	})
	if err != nil || added != 2.5*n || left != 0 {
		t.Errorf("%v: the sums are %g and %g, want %g and 0", err, added, left, 2.5*n)
	}
}
