package measure

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// Ours is the name of this project's provider. Ratios are peers' medians divided by its median.
const Ours = "mgrpo"

// Amount is a number of bytes or operations, with its formula.
type Amount struct {
	Formula string  `json:"formula"`
	Value   float64 `json:"value"`
}

// BF16Factors is the type of a row whose products round their factors to bf16. Other numbers are not rounded.
const BF16Factors = "bf16 factors"

// Row is one case in one state of the cache, with the result of each provider.
type Row struct {
	Suite        string             `json:"suite"`
	Name         string             `json:"name"`
	Shape        string             `json:"shape"`
	DType        string             `json:"dtype"`
	PeerDType    string             `json:"peer_dtype,omitempty"` // the peers' type; empty: the same
	Cache        Cache              `json:"cache"`
	Bytes        Amount             `json:"bytes"` // minimum to move: inputs read once, outputs written once
	ReadOnly     bool               `json:"read_only,omitempty"`
	FLOPs        Amount             `json:"flops"`
	Ceilings     *Ceilings          `json:"ceilings,omitempty"` // measured right before the row; nil: the suite's
	FloorSeconds float64            `json:"floor_seconds"`
	FloorOf      string             `json:"floor_of"` // the ceiling that determines the floor
	Providers    []Result           `json:"providers"`
	Ratio        map[string]float64 `json:"ratio,omitempty"` // each peer's median over ours: above 1 we are faster
	Targets      []Target           `json:"targets,omitempty"`
	Again        *Again             `json:"again,omitempty"` // set if the row was measured apart from the rest of its file
}

// SameCase reports whether two rows are of one case, in any state of the cache.
func (r Row) SameCase(o Row) bool {
	return r.Suite == o.Suite && r.Name == o.Name && r.Shape == o.Shape
}

// Again holds the time of a row that has replaced an earlier one.
type Again struct {
	Date       string  `json:"date"`
	Commit     string  `json:"commit"`
	LoadBefore float64 `json:"load_before"`
}

// Result is one provider's part of a row.
type Result struct {
	Name string `json:"name"`
	Setup
	Quantiles
	Samples        int     `json:"samples"`
	GBps           float64 `json:"gbps,omitempty"`
	GFLOPs         float64 `json:"gflops,omitempty"`
	PercentOfFloor float64 `json:"percent_of_floor,omitempty"` // 100: as fast as the ceiling allows
	MaxError       float64 `json:"max_error"`
	PeakExtraBytes int64   `json:"peak_extra_bytes,omitempty"`
	Status         string  `json:"status"` // "ok", or the reason for missing numbers
}

// Kind is the quantity that a target bounds.
type Kind string

// A target is met if the row's value is at least (Faster) or at most (the other kinds) its bound.
const (
	Faster Kind = "faster than a peer"  // the peer's median over ours
	Floor  Kind = "near the floor"      // our median over the floor
	Memory Kind = "less memory"         // our peak extra bytes over the peer's
	Error  Kind = "error below a bound" // our maximum error
)

// Target is a goal of the project for a row.
type Target struct {
	Kind  Kind     `json:"kind"`
	Peer  string   `json:"peer,omitempty"`
	Bound float64  `json:"bound"`
	Text  string   `json:"text"`
	Value *float64 `json:"value"` // nil: not measured
	Met   bool     `json:"met"`
}

// Schedule holds the numbers of samples and turns. Each provider has Rounds turns.
type Schedule struct {
	Samples int // of a provider; Rounds if a sample takes longer than Long
	Rounds  int
	Long    time.Duration
	Endless time.Duration // a provider that takes longer is sampled once
	Alone   bool          // a provider takes all its turns before the next one opens: a GPU's memory does not hold two
	Log     func(format string, args ...any)
}

// DefaultSchedule takes 20 samples, 5 if a sample takes a second, 1 if it takes two minutes.
var DefaultSchedule = Schedule{Samples: 20, Rounds: 5, Long: time.Second, Endless: 2 * time.Minute}

// BriefSchedule takes three samples, for a device that is available only for minutes.
var BriefSchedule = Schedule{Samples: 3, Rounds: 3, Long: time.Second, Endless: 20 * time.Second}

// QuickSchedule takes two samples: enough to show that a case runs and is right.
var QuickSchedule = Schedule{Samples: 2, Rounds: 2, Long: time.Second, Endless: 2 * time.Minute}

// Measure opens the providers, checks each, and samples them in turns. The first must work. A peer's error is stored in its result. row
// holds the description. The returned row is complete except for the fields that Finish sets.
func (s Schedule) Measure(ctx context.Context, row Row, openers []Opener) (Row, error) {
	row.Providers = make([]Result, len(openers))
	for i, o := range openers {
		row.Providers[i].Name = o.Name
	}
	together := len(openers)
	if s.Alone {
		together = 1
	}
	for begin := 0; begin < len(openers); begin += together {
		if err := s.sample(ctx, &row, openers, begin, begin+together); err != nil {
			return row, fmt.Errorf("%s %s: %w", row.Name, row.Shape, err)
		}
	}
	if s.Log != nil {
		s.Log("%s", summary(row))
	}
	return row, nil
}

// sample opens the providers [begin, end) and samples them in turns.
func (s Schedule) sample(ctx context.Context, row *Row, openers []Opener, begin, end int) error {
	var live []*measuredProvider
	defer func() {
		for _, c := range live {
			c.Close()
		}
	}()
	for i := begin; i < end; i++ {
		r := &row.Providers[i]
		c, err := s.admit(ctx, openers[i], r, row.Cache)
		if err == nil {
			live = append(live, c)
		} else if err = row.refuse(ctx, r, err); err != nil {
			return err
		}
	}
	for range s.Rounds {
		for _, c := range live {
			if c.result.Status != "" {
				continue
			}
			if err := c.turn(ctx, row.Cache); err != nil {
				if err = row.refuse(ctx, c.result, err); err != nil {
					return err
				}
			}
		}
	}
	for _, c := range live {
		if c.result.Status == "" {
			c.result.Quantiles, c.result.Samples, c.result.Status = quantiles(c.seconds), len(c.seconds), "ok"
		}
	}
	return nil
}

// refuse stores the error of a peer in its result. It returns an error that ends the row: our own provider's, or the end of ctx.
func (r *Row) refuse(ctx context.Context, of *Result, err error) error {
	if of == &r.Providers[0] || ctx.Err() != nil {
		return fmt.Errorf("%s: %w", of.Name, err)
	}
	of.Status = err.Error()
	return nil
}

// measuredProvider is a provider while its row is measured.
type measuredProvider struct {
	Provider
	result  *Result
	repeat  int // samples in a turn; 0: all are taken
	seconds []float64
}

// spinTime is approximately the time for which the previous provider's idle OpenMP threads spin.
const spinTime = 2 * time.Millisecond

// admit opens a provider, checks it, and runs it once to measure its duration.
func (s Schedule) admit(ctx context.Context, o Opener, r *Result, cache Cache) (*measuredProvider, error) {
	provider, setup, err := o.Open(ctx)
	if err != nil {
		return nil, err
	}
	r.Setup = setup
	r.MaxError, err = provider.Check(ctx)
	if err == nil && (math.IsNaN(r.MaxError) || math.IsInf(r.MaxError, 0)) {
		err = fmt.Errorf("the error against float64 is %v", r.MaxError)
	}
	var first Samples
	if err == nil {
		first, err = provider.Run(ctx, 1, cache)
	}
	if err != nil {
		provider.Close()
		return nil, err
	}
	c := &measuredProvider{Provider: provider, result: r, repeat: 1}
	switch took := first.Seconds[0]; {
	case took <= s.Long.Seconds():
		c.repeat = (s.Samples + s.Rounds - 1) / s.Rounds
	case took > s.Endless.Seconds():
		c.repeat, c.seconds, r.PeakExtraBytes = 0, first.Seconds, first.PeakExtraBytes
	}
	return c, nil
}

func (c *measuredProvider) turn(ctx context.Context, cache Cache) error {
	if c.repeat == 0 {
		return nil
	}
	time.Sleep(spinTime)
	s, err := c.Run(ctx, c.repeat, cache)
	c.seconds = append(c.seconds, s.Seconds...)
	c.result.PeakExtraBytes = max(c.result.PeakExtraBytes, s.PeakExtraBytes)
	return err
}

// Finish computes rates, floor, ratios and targets from the measurements and the machine's ceilings. It uses the row's own ceilings if
// the row has them.
func (r *Row) Finish(suite Ceilings) {
	c := r.against(suite)
	copyGBps, readGBps := c.Copy.Median, c.Read.Median
	where := "memory"
	if r.Cache == Hot {
		copyGBps, readGBps, where = c.CachedCopy.Median, c.CachedRead.Median, "cache"
	}
	rate, what := copyGBps, "copy"
	if r.ReadOnly {
		rate, what = readGBps, "read"
	}
	r.FloorSeconds, r.FloorOf = r.Bytes.Value/(rate*1e9), where+" "+what
	gemm := c.GEMM.Median
	if r.DType == "bfloat16" || r.DType == BF16Factors || r.DType == "BF16" { // BF16: weights of a GGUF file
		gemm = max(gemm, c.GEMMBF16.Median) // a machine without bf16 instructions computes in float32
	}
	if t := r.FLOPs.Value / (gemm * 1e9); t > r.FloorSeconds {
		r.FloorSeconds, r.FloorOf = t, "gemm"
	}
	r.Ratio = map[string]float64{}
	ours := r.result(Ours)
	for i := range r.Providers {
		p := &r.Providers[i]
		if p.Median == 0 {
			continue
		}
		p.GBps, p.GFLOPs = r.Bytes.Value/p.Median/1e9, r.FLOPs.Value/p.Median/1e9
		p.PercentOfFloor = 100 * r.FloorSeconds / p.Median
		if ours != nil && ours.Median > 0 && p.Name != Ours {
			r.Ratio[p.Name] = p.Median / ours.Median
		}
	}
	for i := range r.Targets {
		r.Targets[i].assess(r)
	}
}

// against returns the ceilings for the row.
func (r *Row) against(suite Ceilings) Ceilings {
	if r.Ceilings != nil {
		return *r.Ceilings
	}
	return suite
}

// PeersDType returns the type of the peers' numbers.
func (r *Row) PeersDType() string { return cmp.Or(r.PeerDType, r.DType) }

// Emulated reports whether the peers use a type without instructions on the machine, so that float32 products are faster. Being faster
// than such a peer does not count as a win.
func (r *Row) Emulated(suite Ceilings) bool {
	c := r.against(suite)
	inBF16 := r.PeersDType() == "bfloat16" || r.PeersDType() == BF16Factors
	return inBF16 && c.GEMMBF16.Median < c.GEMM.Median
}

// Of returns the result of a provider, or nil if the row has none.
func (r *Row) Of(provider string) *Result {
	i := slices.IndexFunc(r.Providers, func(p Result) bool { return p.Name == provider })
	if i < 0 {
		return nil
	}
	return &r.Providers[i]
}

// result returns the result of a provider, or nil if it has no numbers.
func (r *Row) result(provider string) *Result {
	if p := r.Of(provider); p != nil && p.Status == "ok" {
		return p
	}
	return nil
}

func (t *Target) assess(r *Row) {
	t.Value, t.Met = nil, false
	ours, peer := r.result(Ours), r.result(t.Peer)
	if ours == nil || t.Peer != "" && peer == nil {
		return
	}
	var v float64
	switch t.Kind {
	case Faster:
		v = peer.Median / ours.Median
	case Floor:
		v = ours.Median / r.FloorSeconds
	case Memory:
		if peer.PeakExtraBytes == 0 {
			return
		}
		v = float64(ours.PeakExtraBytes) / float64(peer.PeakExtraBytes)
	case Error:
		v = ours.MaxError
	}
	t.Value = &v
	t.Met = v <= t.Bound
	if t.Kind == Faster {
		t.Met = v >= t.Bound
	}
}
