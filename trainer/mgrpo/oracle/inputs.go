package oracle

import "github.com/mgrpo/mgrpo/trainer/mgrpo"

// maxLogProb is the largest log-prob that rounding may cause. A larger one means that a kernel computes probabilities
// above 1.
const maxLogProb = 1e-3

// field is a per-token array and its name in errors.
type field struct {
	name    string
	values  []float64
	logProb bool
}

// fields returns the arrays in the order in which a token's values are checked.
func (b Batch) fields() []field {
	return []field{
		{"logp_new", b.New, true}, {"logp_old", b.Old, true}, {"logp_behaviour", b.Behaviour, true},
		{"logp_ref", b.Ref, true}, {"entropy", b.Entropy, false},
	}
}

// checkInputs refuses missing arrays and impossible values: rules 3 to 6 of docs/algorithm.md §7. read is positive for
// the trajectories that the loss reads.
func (o objective) checkInputs(b Batch, read []float64) error {
	for j := range read {
		if read[j] > 0 && !finite(b.Advantage[j]) {
			return &mgrpo.Refusal{Code: mgrpo.NonFiniteInput, Field: "advantage", Trajectory: new(j)}
		}
	}
	if err := o.checkSupplied(b); err != nil {
		return err
	}
	if err := b.scan(read, mgrpo.NonFiniteInput, func(_ field, x float64) bool { return !finite(x) }); err != nil {
		err.Count = new(b.countNonFinite(read))
		return err
	}
	if err := b.scan(read, mgrpo.PositiveLogProb, func(f field, x float64) bool { return f.logProb && x > maxLogProb }); err != nil {
		return err
	}
	return nil
}

func (o objective) checkSupplied(b Batch) error {
	needed := []bool{true, true, o.TISCap != nil, o.KLCoef != 0, o.EntropyCoef != 0}
	for i, f := range b.fields() {
		if needed[i] && f.values == nil {
			return &mgrpo.Refusal{Code: mgrpo.MissingInput, Field: f.name}
		}
	}
	return nil
}

// scan returns the first bad value at a trained token, ordered by packed token index, then by field.
func (b Batch) scan(read []float64, code mgrpo.Code, bad func(field, float64) bool) *mgrpo.Refusal {
	for j := range read {
		for t := b.CuSeqlens[j]; t < b.CuSeqlens[j+1]; t++ {
			if read[j] == 0 || !b.Mask[t] {
				continue
			}
			for _, f := range b.fields() {
				if f.values != nil && bad(f, f.values[t]) {
					return &mgrpo.Refusal{Code: code, Field: f.name, Trajectory: new(j), Token: new(t)}
				}
			}
		}
	}
	return nil
}

func (b Batch) countNonFinite(read []float64) (n int) {
	b.scan(read, mgrpo.NonFiniteInput, func(_ field, x float64) bool {
		if !finite(x) {
			n++
		}
		return false
	})
	return n
}
