package learner

import (
	"fmt"
	"math"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// checkRoutes refuses experts that the model does not have.
func (q *Sequence) checkRoutes(c arch.Config) error {
	if err := c.CheckRoutes(q.Routes, len(q.Tokens)); err != nil {
		return fmt.Errorf("learner: %s: %w", q.ID, err)
	}
	return nil
}

// replay gives the rows of a micro-batch their recorded experts. A row that sequences share has the experts of the
// first sequence with recorded ones; other rows choose their own. It returns which rows have recorded experts, and
// which have those of the trained version.
func (b *packed) replay(s *torch.Scope, c arch.Config, micro []*Sequence) (known, fresh []bool) {
	width, k := c.RouteWidth(), c.Mixture.PerToken
	layers := width / k
	recorded := make([]int32, layers*b.rows*k)
	for i := range recorded {
		recorded[i] = -1
	}
	known, fresh = make([]bool, b.rows), make([]bool, b.rows)
	for i, q := range micro {
		for t, row := range b.paths[i] {
			if known[row] || (t+1)*width > len(q.Routes) {
				continue
			}
			known[row], fresh[row] = true, !q.Stale
			for l := range layers {
				for j, e := range q.Routes[t*width+l*k:][:k] {
					recorded[(l*b.rows+int(row))*k+j] = int32(e)
				}
			}
		}
	}
	b.in.Routes.Given = s.FromInt32(recorded, int64(layers), int64(b.rows), int64(k))
	return known, fresh
}

// routing holds the settings for the experts of an update's micro-batches.
type routing struct {
	cfg     arch.Config
	replay  bool    // rows use their recorded experts
	balance float64 // coefficient of the load-balancing loss
	total   int     // rows of all ranks' micro-batches that learn; set if balance is not 0
}

// routingCounts counts the experts of micro-batches.
type routingCounts struct {
	Rows, Free    int   // rows of the micro-batches that ran; those of them without recorded experts
	Fresh, Differ int   // choices (of a row in a layer) that the trained version recorded; those of them that the trainer makes differently
	Load          []int // tokens of each expert, [layers, experts]
	Aux           float64
}

func (r *routingCounts) add(other routingCounts) {
	r.Rows += other.Rows
	r.Free += other.Free
	r.Fresh += other.Fresh
	r.Differ += other.Differ
	r.Aux += other.Aux
	if len(r.Load) == 0 {
		r.Load = make([]int, len(other.Load))
	}
	for i, n := range other.Load {
		r.Load[i] += n
	}
}

// loads returns the number of experts that routingCounts.Load counts.
func (r *routing) loads() int {
	if r.cfg.Mixture == nil {
		return 0
	}
	return r.cfg.RoutedLayers() * r.cfg.Mixture.Experts
}

// bytes bounds the size of encoded routingCounts.
func (r *routing) bytes() int { return 10 * r.loads() }

// watch makes a micro-batch report its experts and, if replay is set, use the recorded ones. Call the returned function
// after the pass: it adds the counts to sum. For a model without experts it does nothing.
func (r *routing) watch(s *torch.Scope, b *packed, micro []*Sequence, learns bool, sum *routingCounts) (count func()) {
	m := r.cfg.Mixture
	if m == nil {
		return func() {}
	}
	layers, rows := int64(r.cfg.RoutedLayers()), int64(b.rows)
	known, fresh := make([]bool, b.rows), make([]bool, b.rows)
	b.in.Routes = &model.Routes{Chosen: s.Empty(torch.Int32, layers, rows, int64(m.PerToken))}
	if r.replay {
		known, fresh = b.replay(s, r.cfg, micro)
		b.in.Routes.Differs = s.Empty(torch.Int32, layers, rows)
	}
	if r.balance != 0 && learns {
		b.in.Routes.Prob = s.Empty(torch.Float32, layers, int64(m.Experts))
		b.in.Routes.Balance = r.balance / float64(layers) * float64(b.rows) / float64(r.total)
	}
	return func() { r.count(b, known, fresh, sum) }
}

func (r *routing) count(b *packed, known, fresh []bool, sum *routingCounts) {
	m, layers := r.cfg.Mixture, r.cfg.RoutedLayers()
	chosen := make([]int32, b.in.Routes.Chosen.Numel())
	b.in.Routes.Chosen.Int32s(chosen)
	load, perLayer := make([]int, layers*m.Experts), len(chosen)/layers
	for i, e := range chosen {
		load[i/perLayer*m.Experts+int(e)]++
	}
	sum.add(routingCounts{Rows: b.rows, Load: load})
	for _, k := range known {
		if !k {
			sum.Free++
		}
	}
	if b.in.Routes.Differs != nil {
		sum.countDiffering(b, fresh)
	}
	if b.in.Routes.Prob != nil {
		prob := make([]float32, len(load))
		b.in.Routes.Prob.Float32s(prob)
		for i, p := range prob {
			share := float64(load[i]) / float64(perLayer)
			sum.Aux += float64(m.Experts) * share * float64(p) / float64(layers) * float64(b.rows) / float64(r.total)
		}
	}
}

func (r *routingCounts) countDiffering(b *packed, fresh []bool) {
	differs := make([]int32, b.in.Routes.Differs.Numel())
	b.in.Routes.Differs.Int32s(differs)
	for i, d := range differs {
		if fresh[i%b.rows] {
			r.Fresh++
			r.Differ += int(d)
		}
	}
}

// values adds the statistics under the names of docs/metrics.md.
func (r *routing) values(of routingCounts, v map[string]float64) {
	if of.Rows == 0 {
		return
	}
	v[metrics.RoutingFree] = float64(of.Free) / float64(of.Rows)
	if of.Fresh > 0 {
		v[metrics.RoutingDiffers] = float64(of.Differ) / float64(of.Fresh)
	}
	if r.balance != 0 {
		v[metrics.RouterAuxLoss] = of.Aux
	}
	experts, layers := r.cfg.Mixture.Experts, r.cfg.RoutedLayers()
	tokens, idle, entropy, highest := float64(of.Rows*r.cfg.Mixture.PerToken), 0, 0.0, 0
	for _, n := range of.Load {
		highest = max(highest, n)
		if n == 0 {
			idle++
			continue
		}
		share := float64(n) / tokens
		entropy -= share * math.Log(share)
	}
	v[metrics.ExpertLoadMax] = float64(highest*experts) / tokens
	v[metrics.ExpertsIdle] = float64(idle) / float64(len(of.Load))
	if experts > 1 {
		v[metrics.ExpertEntropy] = entropy / float64(layers) / math.Log(float64(experts))
	}
}
