package arch

import (
	"cmp"
	"fmt"
	"math"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

// RopeLong is LongRoPE (Ding et al. 2024). The frequency of each plane is divided by the plane's factor in Short or, in
// sequences of more than OriginalMaxPosition positions, in Long. Here models are computed up to OriginalMaxPosition only,
// so Long is not used: a sequence that grew beyond this length would need new keys for all its tokens. Cosines and sines
// are multiplied by √(1 + ln Factor / ln OriginalMaxPosition).
type RopeLong struct {
	Short, Long         []float64 // short_factor, long_factor: [Dim/2]
	Factor              float64   // factor; 0: MaxPosition/OriginalMaxPosition
	AttentionFactor     float64   // attention_factor, which replaces the square root; 0: the square root
	OriginalMaxPosition int
	MaxPosition         int // max_position_embeddings
}

// readRopeLong reads the parameters and limits MaxPosition of c.
func readRopeLong(k *keys, c *Config) {
	r := &RopeLong{Short: readNumbers(k, "short_factor"), Long: readNumbers(k, "long_factor"), OriginalMaxPosition: 4096, MaxPosition: c.MaxPosition}
	k.integer(originalPositions, &r.OriginalMaxPosition)
	k.floatOrNull("factor", &r.Factor)
	k.floatOrNull("attention_factor", &r.AttentionFactor)
	c.Rope.Scaling, c.MaxPosition = r, min(c.MaxPosition, r.OriginalMaxPosition)
}

// readNumbers reads a list. An absent key is an error.
func readNumbers(k *keys, key string) (list []float64) {
	k.require(key)
	values, isList := k.values[key].([]any)
	if !isList {
		k.fail("%s is %s: must be a list of numbers", key, strictjson.Show(k.values[key]))
	}
	for i, v := range values {
		one := &keys{values: map[string]any{key: v}, prefix: k.prefix}
		var f float64
		if one.float(key, &f); one.err != nil || !positiveFinite(f) {
			k.fail("%s[%d] is %s: must be a positive number", key, i, strictjson.Show(v))
			return nil
		}
		list = append(list, f)
	}
	return list
}

func (r *RopeLong) rescale(freqs []float64, _ Rotary) {
	for i := range freqs {
		freqs[i] /= r.Short[i]
	}
}

func (r *RopeLong) amplitude() float64 {
	if r.AttentionFactor != 0 {
		return r.AttentionFactor
	}
	factor := cmp.Or(r.Factor, float64(r.MaxPosition)/float64(r.OriginalMaxPosition))
	if factor <= 1 {
		return 1
	}
	return math.Sqrt(1 + math.Log(factor)/math.Log(float64(r.OriginalMaxPosition)))
}

func (r *RopeLong) identity() bool { return false }

func (r *RopeLong) validate() error {
	if r.OriginalMaxPosition < 2 || r.OriginalMaxPosition > maxPosition {
		return fmt.Errorf("original_max_position_embeddings is %d: must be 2 to %d with rope_type longrope", r.OriginalMaxPosition, maxPosition)
	}
	if r.MaxPosition < 1 || r.MaxPosition > maxPosition {
		return fmt.Errorf("max_position_embeddings is %d: must be 1 to %d", r.MaxPosition, maxPosition)
	}
	return cmp.Or(positive("factor", cmp.Or(r.Factor, 1)), positive("attention_factor", cmp.Or(r.AttentionFactor, 1)))
}

// validateFor checks that there is one factor for each of the given number of planes.
func (r *RopeLong) validateFor(planes int) error {
	for key, factors := range map[string][]float64{"short_factor": r.Short, "long_factor": r.Long} {
		if len(factors) != planes {
			return fmt.Errorf("rope_scaling.%s has %d numbers: must have %d, one for each pair of rotated dimensions", key, len(factors), planes)
		}
	}
	return nil
}

func (r *RopeLong) json() map[string]any {
	object := map[string]any{"type": "longrope", "short_factor": decimals(r.Short), "long_factor": decimals(r.Long)}
	if r.Factor != 0 {
		object["factor"] = decimal(r.Factor)
	}
	if r.AttentionFactor != 0 {
		object["attention_factor"] = decimal(r.AttentionFactor)
	}
	return object
}

func decimals(values []float64) (list []any) {
	for _, v := range values {
		list = append(list, decimal(v))
	}
	return list
}
