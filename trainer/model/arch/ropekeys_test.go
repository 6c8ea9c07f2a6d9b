package arch

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// ropeReference has the contents of testdata/rope.json: frequencies that transformers computes (testdata/rope.py).
type ropeReference struct {
	Families map[string]map[string]any
	Keys     []string // keys of rope_parameters that modeling_rope_utils reads
	GGUF     []string // keys of metadata after "ARCH.rope."
	Cases    []ropeCase
}

type ropeCase struct {
	Name, Family, Error string
	Config              map[string]any // in addition to the family's
	Supported           bool           // must be computed; other cases may be refused

	Full    *ropeTable `json:"full_attention"`
	Sliding *ropeTable `json:"sliding_attention"`
}

type ropeTable struct {
	Frequencies []float64
	Amplitude   float64
}

func readRopeReference(t *testing.T) (r ropeReference) {
	t.Helper()
	golden.ReadJSON(t, "testdata/rope.json", &r)
	return r
}

func (r ropeReference) parse(t *testing.T, c ropeCase) (Config, error) {
	t.Helper()
	object := maps.Clone(r.Families[c.Family])
	maps.Copy(object, c.Config)
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return ParseJSON(data)
}

// compare reports differences from transformers' tables, which are float32.
func (c ropeCase) compare(t *testing.T, what string, got Config) {
	t.Helper()
	for layer := range got.Layers {
		want := c.Full
		if c.Sliding != nil && got.Layer(layer).Window() > 0 {
			want = c.Sliding
		}
		rotary, _ := got.Layer(layer).Rotary()
		for i, f := range rotary.Frequencies() {
			if i >= len(want.Frequencies) || math.Abs(f-want.Frequencies[i]) > 2e-6*want.Frequencies[i] {
				t.Errorf("%s: %s%s: layer %d, plane %d: %v, want %v", c.Family, c.Name, what, layer, i, f, want.Frequencies)
				break
			}
		}
		if math.Abs(rotary.Amplitude()-want.Amplitude) > 1e-6 {
			t.Errorf("%s: %s%s: layer %d: amplitude %v, want %v", c.Family, c.Name, what, layer, rotary.Amplitude(), want.Amplitude)
		}
	}
}

// TestRopeKeys: every key that changes transformers' frequencies is computed or refused, both
// in the configuration that is read and in the one that is written.
func TestRopeKeys(t *testing.T) {
	reference := readRopeReference(t)
	walked, computed := map[string]bool{}, 0
	for _, c := range reference.Cases {
		for key, value := range c.Config {
			walked[key] = true
			if section, ok := value.(map[string]any); ok {
				for key := range section {
					walked[key] = true
				}
			}
		}
		got, err := reference.parse(t, c)
		switch {
		case err != nil && c.Supported:
			t.Errorf("%s: %s: refused: %v", c.Family, c.Name, err)
		case err == nil && c.Error != "":
			t.Errorf("%s: %s: accepted; transformers: %s", c.Family, c.Name, c.Error)
		case err == nil:
			computed++
			c.compare(t, "", got)
			written, err := got.JSON("float32")
			if err != nil {
				t.Fatal(err)
			}
			again, err := ParseJSON(written)
			if err != nil {
				t.Fatalf("%s: %s: %v", c.Family, c.Name, err)
			}
			c.compare(t, ", written", again)
		}
	}
	for _, key := range reference.Keys {
		if !walked[key] {
			t.Errorf("no case has %s", key)
		}
	}
	if computed < len(reference.Cases)/2 {
		t.Errorf("%d of %d cases are computed", computed, len(reference.Cases))
	}
}

// TestWrittenOriginalLength: a written config.json has the original length only in
// rope_scaling, because a value at the top level would have priority.
func TestWrittenOriginalLength(t *testing.T) {
	got, err := ParseJSON([]byte(`{"model_type":"qwen3","original_max_position_embeddings":64,"rope_scaling":{"rope_type":"yarn","factor":4,"original_max_position_embeddings":32}}`))
	if err != nil {
		t.Fatal(err)
	}
	written, err := got.JSON("float32")
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := json.Unmarshal(written, &object); err != nil {
		t.Fatal(err)
	}
	if _, top := object["original_max_position_embeddings"]; top || object["rope_scaling"].(map[string]any)["original_max_position_embeddings"] != 64.0 {
		t.Errorf("%s", written)
	}
}

func ropeMetadata(more map[string]any) (map[string]any, map[string][]int64) {
	meta := map[string]any{"general.architecture": "llama", "llama.embedding_length": int64(32), "llama.block_count": int64(1),
		"llama.attention.head_count": int64(2), "llama.feed_forward_length": int64(8), "llama.context_length": int64(256),
		"llama.attention.layer_norm_rms_epsilon": 1e-5}
	for key, value := range more {
		meta["llama.rope."+key] = value
	}
	return meta, map[string][]int64{ggufEmbedding: {32, 32}}
}

// TestGGUFRope compares scalings of metadata with scalings of config.json. llama.cpp's converter
// writes the former for the latter, and transformers' frequencies of the latter are known.
func TestGGUFRope(t *testing.T) {
	yarn := func(r RopeYaRN) *RopeYaRN {
		r.BetaFast, r.BetaSlow, r.Truncate = 32, 1, true
		return &r
	}
	for name, c := range map[string]struct {
		meta map[string]any
		want RopeScaling
	}{
		"nothing":            {nil, nil},
		"none":               {map[string]any{"scaling.type": "none", "scaling.factor": 4.0}, nil},
		"linear, no factor":  {map[string]any{"scaling.type": "linear"}, nil},
		"linear, 1":          {map[string]any{"scaling.type": "linear", "scaling.factor": 1.0}, nil},
		"as llama.cpp saves": {map[string]any{"scaling.type": "linear", "scaling.factor": 0.0, "scaling.attn_factor": 1.0, "scaling.finetuned": false}, nil},
		"no type":            {map[string]any{"scaling.factor": 4.0}, &RopeLinear{4}},
		"linear":             {map[string]any{"scaling.type": "linear", "scaling.factor": 4.0}, &RopeLinear{4}},
		"older name":         {map[string]any{"scale_linear": 2.0}, &RopeLinear{2}},
		"both names":         {map[string]any{"scale_linear": 2.0, "scaling.factor": 4.0}, &RopeLinear{4}},
		"yarn":               {map[string]any{"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": int64(64)}, yarn(RopeYaRN{Factor: 4, AttentionFactor: 0.1*math.Log(4) + 1, OriginalMaxPosition: 64})},
		"yarn, no length":    {map[string]any{"scaling.type": "yarn", "scaling.factor": 4.0}, yarn(RopeYaRN{Factor: 4, AttentionFactor: 0.1*math.Log(4) + 1, OriginalMaxPosition: 256})},
		"yarn, amplitude":    {map[string]any{"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.attn_factor": 0.5}, yarn(RopeYaRN{Factor: 4, AttentionFactor: 0.5 * (0.1*math.Log(4) + 1), OriginalMaxPosition: 256})},
		"yarn, as converted": {map[string]any{"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.yarn_attn_factor": 1.2079}, yarn(RopeYaRN{Factor: 4, AttentionFactor: 0.1*math.Log(4) + 1, OriginalMaxPosition: 256})},
		"yarn of 1":          {map[string]any{"scaling.type": "yarn", "scaling.factor": 1.0}, nil},
		"as llama.cpp saves a model without windows": {map[string]any{"freq_base_swa": 5e5, "dimension_count_swa": int64(8), "dimension_sections": []int64{0, 0, 0, 0}}, nil},
		"values without an effect":                   {map[string]any{"freq_base_swa": 10000.0, "dimension_count": int64(16), "scaling.yarn_log_multiplier": 0.0, "scaling.alpha": 0.0, "scaling.yarn_beta_fast": 32.0}, nil},
	} {
		meta, shapes := ropeMetadata(c.meta)
		got, err := FromGGUF(meta, shapes, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := Config{HeadDim: 16, Rope: Rope{Theta: 10000, Scaling: c.want}, Layers: 1}
		a, _ := got.Layer(0).Rotary()
		b, _ := want.Layer(0).Rotary()
		if !slices.Equal(a.Frequencies(), b.Frequencies()) || a.Amplitude() != b.Amplitude() {
			t.Errorf("%s: %v × %v, want %v × %v", name, a.Frequencies(), a.Amplitude(), b.Frequencies(), b.Amplitude())
		}
	}
}

// TestGGUFRopeKeys: every key after "rope." that llama.cpp reads is computed or refused by
// name, and so is a key that a later llama.cpp may read.
func TestGGUFRopeKeys(t *testing.T) {
	read := []string{"freq_base", "scaling.type", "scaling.factor", "scaling.attn_factor", "scaling.original_context_length"}
	unread := []string{"scaling.finetuned", "scaling.yarn_attn_factor"} // no architecture here depends on them
	for _, key := range append(readRopeReference(t).GGUF, "scale_linear", "scaling.gamma") {
		refused := false
		for _, value := range []any{3.0, int64(3), "longrope", []int64{3}} {
			meta, shapes := ropeMetadata(map[string]any{key: value})
			meta["llama.attention.sliding_window"] = int64(8)
			got, err := FromGGUF(meta, shapes, nil)
			if err != nil {
				refused = true
				if !strings.Contains(err.Error(), "llama.rope."+key) {
					t.Errorf("%s %v: the error does not name the key: %v", key, value, err)
				}
			} else if rotary, _ := got.Layer(0).Rotary(); !slices.Contains(unread, key) && key != "scaling.original_context_length" && slices.Equal(rotary.Frequencies(), Rotary{Theta: 10000, Dim: 16}.Frequencies()) {
				t.Errorf("%s %v is ignored", key, value)
			}
		}
		if !refused && !slices.Contains(read, key) && key != "scaling.finetuned" {
			t.Errorf("%s is neither read nor refused", key)
		}
	}
}
