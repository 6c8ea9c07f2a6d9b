package phases

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer"
)

func TestMain(m *testing.M) {
	trainer.ServeChild()
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent())
}

// maxGap returns the largest allowed difference between the sampler's log-probs and the trainer's, relative to the largest log-prob.
func maxGap(row measure.Row) float64 {
	if row.DType == "bfloat16" || row.Providers[0].Settings["cache"] == "bf16" { // 8 bits of each weight, or of each key and value
		return 1e-2
	}
	if row.Providers[0].Settings["max_error_against"] == "the other forward pass, one update later" {
		return 1e-3
	}
	return 1e-5
}

// TestQuick runs every suite on a tiny model, as mgrpo bench --quick does.
func TestQuick(t *testing.T) {
	for _, device := range cudatest.Devices(t) {
		for suite := range phases {
			t.Run(device+"/"+suite, func(t *testing.T) { testQuick(t, device, suite) })
		}
	}
}

// TestHalfSamplesAsPrepared: in bf16, timed rollouts sample the same tokens as the workload. Both round the factors of products.
func TestHalfSamplesAsPrepared(t *testing.T) {
	ctx, o := context.Background(), Options{Root: t.TempDir(), Device: "cpu", Threads: 1, Quick: true, Log: t.Logf}
	b := bench{name: "small", suite: "rollout", weights: small, shape: shape{prompts: 2, rollouts: 1, promptTokens: 20, newTokens: 20}, precision: half}
	err := b.prepared(ctx, o, func(w *workload) error {
		p, _, err := open(ctx, phases["rollout"], w, o)
		if err != nil {
			return err
		}
		_, err = p.Check(ctx)
		return errors.Join(err, p.Close())
	})
	if err != nil {
		t.Error(err)
	}
}

// TestRanksQuick runs mgrpo bench learner --ranks 2 --quick.
func TestRanksQuick(t *testing.T) {
	r, err := Ranks(context.Background(), 2, Options{Root: t.TempDir(), Device: "cpu", Threads: 2, Quick: true, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	row := r.Rows[0]
	checkRow(t, row)
	held := func(i int) int64 { return row.Providers[i].Setup.Settings["held_bytes"].(int64) }
	if row.Providers[1].Status != "ok" || held(0) <= 0 || held(0) >= held(1) { // half of AdamW's moments
		t.Errorf("two ranks: %+v; one: %+v", row.Providers[0], row.Providers[1])
	}
}

func testQuick(t *testing.T, device, suite string) {
	saved := 0
	r, err := Run(context.Background(), suite, Options{
		Root: t.TempDir(), Device: device, Threads: 1, Quick: true, Log: t.Logf,
		Save: func(*measure.Results) error { saved++; return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	want := len(casesOf(suite, true))
	if suite == "step" {
		want++ // a team of two models
	}
	if suite == "rollout" {
		want++ // two agents of one base
		if device != "cpu" {
			want++ // decoding
		}
	}
	if len(r.Rows) != want || saved != want {
		t.Fatalf("%d rows, saved %d times; want both to be %d", len(r.Rows), saved, want)
	}
	for _, row := range r.Rows {
		checkRow(t, row)
	}
}

func checkRow(t *testing.T, row measure.Row) {
	ours := row.Providers[0]
	if ours.Name != measure.Ours || ours.Status != "ok" || ours.Samples < measure.QuickSchedule.Samples || ours.Median <= 0 {
		t.Errorf("our provider's result is %+v", ours)
	}
	if !(ours.MaxError < maxGap(row)) || ours.MaxError == 0 {
		t.Errorf("%s: log-probs are off by %v; at most %v is allowed", row.Name, ours.MaxError, maxGap(row))
	}
	if row.DType == "bfloat16" && row.Name != "decode" && ours.MaxError < 1e-5 { // the other pass of decode is in bf16, too
		t.Errorf("%s: log-probs are off by only %v; the weights may not have been rounded", row.Name, ours.MaxError)
	}
	if row.DType != "Q8_0" && ours.PeakExtraBytes < 4*tiny.config.Parameters() {
		t.Errorf("peak memory is %d bytes, less than the weights", ours.PeakExtraBytes)
	}
	if strings.HasSuffix(row.Name, "-lora") {
		if whole := row.Providers[1]; whole.Name != inFull || whole.Status != "ok" || whole.PeakExtraBytes < 16*tiny.config.Parameters() ||
			ours.PeakExtraBytes > whole.PeakExtraBytes-4*tiny.config.Parameters() {
			t.Errorf("with all weights trained: %+v; with adapters the peak is %d bytes", whole, ours.PeakExtraBytes)
		}
	}
	if row.FloorSeconds <= 0 {
		t.Errorf("the floor is %v s", row.FloorSeconds)
	}
}

// TestFloors compares with counts made by hand for a model of 2 layers, width 64, 4 heads of 16, 2 key-value heads and an MLP of 160.
func TestFloors(t *testing.T) {
	s := shape{prompts: 2, rollouts: 3, promptTokens: 5, newTokens: 4}
	layers := 2.0 * (64*64 + 2*64*32 + 64*64 + 3*64*160)
	head := 257.0 * 64
	tokens := 2.0 * (5 + 3*3)
	pairs := 2.0 * ((1 + 2 + 3 + 4 + 5) + 3*(6+7+8))
	attention := 4 * 2 * 64 * pairs
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"rollout", rolloutFLOPs(tiny.config, s, 0).Value, 2*(layers*tokens+head*(2+3*2*3)) + attention},
		{"learner", learnerFLOPs(tiny.config, s, 0).Value, 3 * (2*(layers*tokens+head*24) + attention)},
		{"learner with adapters", learnerFLOPs(tiny.config, s, 1000).Value, 2*(2*(layers*tokens+head*24)+attention) + 6*1000*tokens},
		{"decode", decodeBytes(tiny.config, s, 4, 0).Value, 4 * 4 * (layers + head + 5*64)},
		{"decode in bf16", decodeBytes(tiny.config, s, 2, 0).Value, 2 * 4 * (layers + head + 5*64)},
	} {
		if math.Abs(c.got-c.want) > 0.5 {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
	}
}

// TestCases checks the real cases: the peer of each target runs in the same suite.
func TestCases(t *testing.T) {
	for suite := range phases {
		for _, b := range append(casesOf(suite, false), gpuCases(suite)...) {
			for _, target := range b.targets {
				if target.Peer != "" && !slices.Contains(b.peerNames(), target.Peer) && !(b.weights.rank > 0 && target.Peer == inFull) {
					t.Errorf("%s %s is compared with %s, which does not run", suite, b.name, target.Peer)
				}
			}
		}
	}
}

// TestPeers runs every suite together with its peer if MGRPO_PEERS is set, because Python takes half a minute
// per suite to start. If the peer computes the same model, its log-probs are compared with float64, too.
func TestPeers(t *testing.T) {
	root := filepath.Join("..", "..")
	if os.Getenv("MGRPO_PEERS") == "" {
		t.Skip("make bench-peers, then MGRPO_PEERS=1, runs the peers too")
	}
	for suite, p := range phases {
		t.Run(suite, func(t *testing.T) {
			r, err := Run(context.Background(), suite, Options{Root: root, Device: "cpu", Threads: 1, Quick: true, Peers: true, Log: t.Logf})
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range r.Rows {
				if row.Name == agentsLabel {
					continue
				}
				last := len(row.Providers) - 1
				for i, name := range map[int]string{0: measure.Ours, last: map[bool]string{false: p.peer, true: p.adapted}[strings.HasSuffix(row.Name, "-lora")]} {
					got := row.Providers[i]
					if got.Name != name || got.Status != "ok" || !(got.MaxError < maxGap(row)) {
						t.Errorf("%s %s: %+v", row.Name, name, got)
					}
				}
			}
		})
	}
}

// TestDecodeQuick decodes from files of two types and reads prompts, like mgrpo bench decode --quick.
func TestDecodeQuick(t *testing.T) {
	r, err := Decode(context.Background(), Options{Root: t.TempDir(), Device: "cpu", Threads: 1, Quick: true, Log: t.Logf, Save: func(*measure.Results) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 5 {
		t.Fatalf("%d rows", len(r.Rows))
	}
	for _, row := range r.Rows {
		checkRow(t, row)
	}
	if f32, q8 := r.Rows[0].Providers[0], r.Rows[1].Providers[0]; q8.PeakExtraBytes >= f32.PeakExtraBytes {
		t.Errorf("Q8_0 takes %d bytes, F32 %d", q8.PeakExtraBytes, f32.PeakExtraBytes)
	}
}

// TestPlannedBytes: the plan of an update of 1.7 billion parameters has 20 bytes for each, plus activations.
func TestPlannedBytes(t *testing.T) {
	for _, b := range gpuCases("learner") {
		planned, err := b.plannedBytes()
		if least := 18 * b.weights.config.Parameters(); err != nil || planned < least || planned > 4*least {
			t.Errorf("%s: %d bytes are planned, want at least %d for weights, gradients and moments; %v", b.name, planned, least, err)
		}
	}
}
