package learner

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// A learner with moments and fp32 weights in the host's memory, copied to the device piece by piece, ends
// with the same bits as one with everything on the device. On a GPU, products may round differently. A
// refused update changes nothing, and each kind of learner can restore the state that the other kind saved.
func TestHostState(t *testing.T) {
	cudatest.Each(t, func(t *testing.T, device string) {
		learner := func(host bool) *Learner {
			o := mixtureOptions(func(o *Options) { o.HostState = host })
			return tinyLearnerOf(t, tinyModelIn(t, device, 1, model.Options{Compute: torch.BFloat16, HostMaster: host}), o)
		}
		there, here := learner(false), learner(true)
		here.model.Master.Piece, here.State.m.Piece, here.State.v.Piece = 384, 192, 192 // the last is shorter
		if here.State.m.Tensor != nil || here.model.Master.Tensor != nil || here.State.m.Numel()%192 == 0 {
			t.Fatalf("%d moments in pieces of 192", here.State.m.Numel())
		}
		batch := tinyBatch(t, there, 0.3)
		same := func(what string) {
			t.Helper()
			weights, m, v := stateOf(t, there)
			gotWeights, gotM, gotV := stateOf(t, here)
			if !sameValues(device, gotWeights, weights) || !sameValues(device, gotM, m) || !sameValues(device, gotV, v) {
				t.Errorf("%s: weights or moments differ", what)
			}
		}
		trained(t, there, batch)
		trained(t, here, batch)
		same("after updates")

		bad := clone(batch)
		bad[3].Behaviour[bad[3].trained()[2]] = float32(math.NaN())
		if err := here.Prepare(t.Context(), bad); err != nil {
			t.Fatal(err)
		}
		if r, err := here.Update(t.Context(), bad, 0.01); err != nil || r.Refused == nil {
			t.Errorf("not refused: %+v, %v", r, err)
		}
		same("after a refusal")

		weights, m, v := stateOf(t, there)
		from := func(values []float32) func(int64, []float32) error {
			return func(from int64, dst []float32) error {
				copy(dst, values[from:])
				return nil
			}
		}
		if err := here.State.Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, none, _ := stateOf(t, here); slices.Max(none) != 0 {
			t.Error("moments after a reset")
		}
		other := make([]float32, len(weights))
		if err := here.State.RestoreWeights(t.Context(), from(other)); err != nil {
			t.Fatal(err)
		}
		wantHalf(t, here, other)
		if err := errors.Join(here.State.RestoreWeights(t.Context(), from(weights)), here.State.RestoreMoments(t.Context(), from(m), from(v))); err != nil {
			t.Fatal(err)
		}
		same("restored")
		wantHalf(t, here, weights)
	})
}
