package gotchx

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/sugarme/gotch"
	"github.com/sugarme/gotch/nn"
	"github.com/sugarme/gotch/ts"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

func do(t *testing.T, f func(s *torch.Scope)) {
	t.Helper()
	d, err := torch.Open("cpu", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Do(context.Background(), func(s *torch.Scope) error { f(s); return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestStorageIsSharedBothWays(t *testing.T) {
	do(t, func(s *torch.Scope) {
		ours := s.FromFloat32([]float32{1, 2, 3, 4, 5, 6}, 2, 3)
		theirs := toGotch(ours)
		if size := theirs.MustSize(); len(size) != 2 || size[0] != 2 || size[1] != 3 || theirs.DType() != gotch.Float {
			t.Errorf("gotch sees %v %v", size, theirs.DType())
		}
		if err := theirs.Fill_(ts.FloatScalar(7)); err != nil {
			t.Fatal(err)
		}
		if got := ours.Sum().Item(); got != 42 {
			t.Errorf("gotch wrote 7s, our sum is %g", got)
		}
		ours.Drop()
		if v := theirs.Float64Values(); len(v) != 6 || v[5] != 7 {
			t.Errorf("gotch sees %v after our tensor was dropped", v)
		}

		back := fromGotch(s, theirs)
		theirs.MustDrop()
		back.Fill_(2)
		if got := back.Sum().Item(); got != 12 {
			t.Errorf("sum is %g after gotch's tensor was dropped", got)
		}
	})
}

// A user's gotch network scores our tensor. Both our tensor and the network's weights get gradients.
func TestGotchModuleAsRewardModel(t *testing.T) {
	const in, hidden = 4, 3
	input := []float64{0.5, -1, 2, 0.25}
	do(t, func(s *torch.Scope) {
		vs := nn.NewVarStore(gotch.CPU)
		var first, second *nn.Linear
		s.Grad(true, func() { // gotch transposes the weights here; unless that is recorded, they get no gradient
			first = nn.NewLinear(vs.Root().Sub("first"), in, hidden, nn.DefaultLinearConfig())
			second = nn.NewLinear(vs.Root().Sub("second"), hidden, 1, nn.DefaultLinearConfig())
		})
		a, c := first.Ws.MustDetach(false).Float64Values(), first.Bs.Float64Values()
		w, b := second.Ws.MustDetach(false).Float64Values(), second.Bs.Float64Values()
		score := func(x []float64) float64 {
			sum := b[0]
			for h := range hidden {
				z := c[h]
				for i := range in {
					z += a[i*hidden+h] * x[i] // gotch stores the weights transposed, [in, hidden]
				}
				sum += w[h] * math.Tanh(z)
			}
			return sum
		}

		x := s.FromFloat32([]float32{0.5, -1, 2, 0.25}, 1, in)
		x.RequireGrad(true)
		s.Grad(true, func() {
			theirs := toGotch(x)
			defer theirs.MustDrop()
			out := second.Forward(first.Forward(theirs).MustTanh(true))
			defer out.MustDrop()
			reward := fromGotch(s, out)
			if want, got := score(input), reward.Item(); math.Abs(got-want) > 1e-5 {
				t.Errorf("score %g, want %g", got, want)
			}
			torch.Backward([]*torch.Tensor{reward}, []*torch.Tensor{s.Full(torch.Float32, 2, 1, 1)})
		})
		got := make([]float32, in)
		x.Grad().Float32s(got)
		for i := range in {
			const h = 1e-6
			up, down := slices.Clone(input), slices.Clone(input)
			up[i], down[i] = up[i]+h, down[i]-h
			if want := 2 * (score(up) - score(down)) / (2 * h); math.Abs(float64(got[i])-want) > 1e-4 {
				t.Errorf("gradient %d is %g, want %g", i, got[i], want)
			}
		}
		for name, weight := range vs.Variables() {
			if g := fromGotch(s, &weight).Grad(); g == nil || g.Norm().Item() == 0 {
				t.Errorf("%s of the network got no gradient", name)
			}
		}
	})
}

func TestToDevice(t *testing.T) {
	do(t, func(s *torch.Scope) {
		if toDevice(s.Device()) != gotch.CPU {
			t.Error("device of a scope")
		}
	})
}
