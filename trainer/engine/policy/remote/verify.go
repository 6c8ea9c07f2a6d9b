package remote

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// probe is a sequence of random tokens, and the positions at which it is cut into prompts. A server samples one token
// after each prompt.
type probe struct {
	ids  []int32
	ends []int
}

const probePrompts = 12

// newProbe draws tokens from the lower half of the vocabulary: ids at its end may have no text, and servers refuse
// those.
func newProbe(vocabulary, contextLimit int) probe {
	rng := rand.New(rand.NewPCG(0x6d6772706f, 1))
	length := min(64, contextLimit-1)
	p := probe{ids: make([]int32, length)}
	for i := range p.ids {
		p.ids[i] = rng.Int32N(int32(max(vocabulary/2, 1)))
	}
	for i := range probePrompts {
		p.ends = append(p.ends, max(length*(i+1)/probePrompts, 1))
	}
	return p
}

// trainerLogits holds the trainer's logits after each of the probe's prompts.
type trainerLogits struct{ logits [][]float32 }

// logProb returns the log-prob of a token under softmax(logits / temperature) after prompt i.
func (e *trainerLogits) logProb(i int, id int32, temperature float64) float64 {
	row := e.logits[i]
	top := math.Inf(-1)
	for _, z := range row {
		top = max(top, float64(z))
	}
	sum := 0.0
	for _, z := range row {
		sum += math.Exp((float64(z) - top) / temperature)
	}
	return (float64(row[id])-top)/temperature - math.Log(sum)
}

// gaps holds average differences of a server's log-probs from the trainer's over the probe, in nats.
type gaps struct {
	now    float64 // the trainer has the weights that the server should have
	before float64 // the trainer has the previous weights; infinite if there were none
	raw    float64 // as now, but the trainer's log-probs do not include the temperature
	n      float64
}

func (g *gaps) add(w *weightsCopy, i int, id int32, logProb, temperature float64) {
	g.n++
	g.now += math.Abs(logProb - w.logits.logProb(i, id, temperature))
	g.raw += math.Abs(logProb - w.logits.logProb(i, id, 1))
	if w.previous == nil {
		g.before = math.Inf(1)
		return
	}
	g.before += math.Abs(logProb - w.previous.logProb(i, id, temperature))
}

// verdict returns an error that explains what is wrong with a server with these gaps, or nil.
func (g *gaps) verdict(tolerance float64) error {
	now, before, raw := g.now/g.n, g.before/g.n, g.raw/g.n
	const clearly = 4 // times closer: chance and rounding do not explain such a difference
	switch {
	case now > tolerance && raw <= tolerance:
		return fmt.Errorf("its log-probs do not include the temperature: start vLLM with --logprobs-mode processed_logprobs")
	case before*clearly < now:
		return fmt.Errorf("it still samples with the previous weights: its log-probs of %.0f tokens differ by %.3g nats from the previous weights and "+
			"by %.3g from the weights that it reports", g.n, before, now)
	case !(now <= tolerance):
		return fmt.Errorf("it does not sample with the agent's weights: its log-probs of %.0f tokens differ from the trainer's by %.3g nats on "+
			"average, more than engine.weights.tolerance %.3g", g.n, now, tolerance)
	}
	return nil
}

// verifyWeights makes a server sample a token after each of the probe's prompts, in the same way as the turns of the run, and
// compares the log-probs. It uses two temperatures, since at 1 log-probs with and without the temperature are equal. gap is
// the average difference from the trainer's, in nats.
func (p *Policy) verifyWeights(ctx context.Context, r *replica, w *weightsCopy) (gap float64, err error) {
	var mu sync.Mutex
	var g gaps
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(max(p.opt.InFlight, 1))
	for _, temperature := range []float64{p.opt.Temperature, 1.5 * p.opt.Temperature} {
		for i, end := range p.probe.ends {
			group.Go(func() error {
				q := prompt{tokens: p.probe.ids[:end], sampling: policy.Sampling{Temperature: temperature}, most: 1, seed: int64(i + 1)}
				a, err := r.ask(gctx, p, w, q)
				if err != nil {
					return err
				}
				if len(a.ids) != 1 {
					return fmt.Errorf("it returned %d tokens, but one was requested", len(a.ids))
				}
				mu.Lock()
				defer mu.Unlock()
				g.add(w, i, a.ids[0], a.logProbs[0], temperature)
				return nil
			})
		}
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	return g.now / g.n, g.verdict(p.opt.Tolerance)
}
