package arch

import (
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// TestIntervals reads the keys that select every n-th layer: n must be a positive integer, and null is an error, as in transformers. If a
// key lists the layers, the interval is not read.
func TestIntervals(t *testing.T) {
	for _, c := range []struct{ family, key, layers string }{
		{"exaone4", "sliding_window_pattern", `"layer_types":["full_attention","full_attention"]`},
		{"gemma3_text", "sliding_window_pattern", `"layer_types":["full_attention","full_attention"]`},
		{"qwen3_5_text", "full_attention_interval", `"layer_types":["full_attention","full_attention"]`},
		{"smollm3", "no_rope_layer_interval", `"no_rope_layers":[0,0]`},
	} {
		parse := func(value, more string) error {
			_, err := ParseJSON([]byte(`{"model_type":"` + c.family + `","num_hidden_layers":2,"` + c.key + `":` + value + more + `}`))
			return err
		}
		for value, want := range map[string]string{"0": " is 0: must be at least 1", "-1": " is -1: must be at least 1", "null": " is null: must be an integer"} {
			golden.WantError(t, parse(value, ""), c.key+want)
		}
		for value, more := range map[string]string{"1": "", "2": "", "null": "," + c.layers} {
			if err := parse(value, more); err != nil {
				t.Errorf("%s, %s %s%s: got error %v", c.family, c.key, value, more, err)
			}
		}
	}
	if _, err := ParseJSON([]byte(`{"model_type":"exaone4","sliding_window":null,"sliding_window_pattern":null}`)); err != nil {
		t.Errorf("exaone4 without a window: got error %v", err)
	}
}
