package arch

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

func TestLFM2(t *testing.T) {
	for _, c := range []struct {
		json      string
		convolves []bool // nil: none
		ffn       int
	}{
		{`"num_hidden_layers":3`, nil, 8192},
		{`"num_hidden_layers":3,"full_attn_idxs":[2,7]`, []bool{true, true, false}, 8192},
		{`"num_hidden_layers":3,"full_attn_idxs":[]`, []bool{true, true, true}, 8192},
		{`"num_hidden_layers":2,"full_attn_idxs":[0,1],"layer_types":["conv","full_attention"]`, []bool{true, false}, 8192},
		{`"num_hidden_layers":2,"full_attn_idxs":null,"layer_types":null`, nil, 8192},
		{`"num_hidden_layers":1,"intermediate_size":10752,"block_ff_dim":6656`, nil, 4608}, // LFM2-350M: 4437 rounded up to 256s
		{`"num_hidden_layers":1,"block_ff_dim":10752,"block_auto_adjust_ff_dim":false`, nil, 10752},
		{`"num_hidden_layers":1,"block_ff_dim":100,"block_ffn_dim_multiplier":1.5,"block_multiple_of":8`, nil, 104}, // 66, 99
		{`"num_hidden_layers":1,"block_ff_dim":100,"block_ffn_dim_multiplier":null,"block_multiple_of":8`, nil, 66},
	} {
		got, err := ParseJSON([]byte(`{"model_type":"lfm2",` + c.json + `}`))
		if err != nil {
			t.Errorf("%s: %v", c.json, err)
			continue
		}
		var convolves []bool
		if got.ShortConv != nil {
			convolves = got.ShortConv.Layers
		}
		if !slices.Equal(convolves, c.convolves) || got.FFN != c.ffn || got.HeadDim != 80 || !got.Tied {
			t.Errorf("%s: convolutions %v, MLPs of width %d, heads of %d, tied: %v", c.json, convolves, got.FFN, got.HeadDim, got.Tied)
		}
	}
}

func TestLFM2Refusals(t *testing.T) {
	for json, want := range map[string]string{
		`"num_hidden_layers":2,"layer_types":["conv","mamba"]`:                                       "layer_types[1]",
		`"num_hidden_layers":2,"layer_types":["conv"]`:                                               "layer_types",
		`"num_hidden_layers":1,"layer_types":["conv"],"conv_L_cache":9`:                              "conv_L_cache is 9",
		`"num_hidden_layers":1,"layer_types":["conv"],"conv_L_cache":0`:                              "conv_L_cache is 0",
		`"num_hidden_layers":1,"block_multiple_of":0`:                                                "block_multiple_of",
		`"num_hidden_layers":1,"block_ffn_dim_multiplier":1e30`:                                      "block_ffn_dim_multiplier",
		`"num_hidden_layers":1,"block_ffn_dim_multiplier":-1`:                                        "block_ffn_dim_multiplier",
		`"num_hidden_layers":1,"use_sliding_window":true`:                                            "use_sliding_window",
		`"num_hidden_layers":1,"full_attn_idxs":["a"]`:                                               "full_attn_idxs",
		`"num_hidden_layers":1,"norm_eps":2`:                                                         "rms_norm_eps",
		`"num_hidden_layers":1000000,"full_attn_idxs":[1]`:                                           "num_hidden_layers",
		`"num_hidden_layers":1,"architectures":["Lfm2MoeForCausalLM"],"layer_types":["conv"]`:        "architectures",
		`"num_hidden_layers":1,"hidden_size":131072,"num_attention_heads":32,"layer_types":["conv"]`: "hidden_size",
	} {
		if _, err := ParseJSON([]byte(`{"model_type":"lfm2",` + json + `}`)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %s", json, err, want)
		}
	}
	if _, err := ParseJSON([]byte(`{"model_type":"llama","num_hidden_layers":1,"layer_types":["conv"]}`)); err == nil {
		t.Error("a convolution in Llama was accepted")
	}
}

// TestLFM2Cache: the cache of a convolution layer has one value for each channel.
func TestLFM2Cache(t *testing.T) {
	c, err := ParseJSON([]byte(`{"model_type":"lfm2","hidden_size":2048,"num_hidden_layers":16,"full_attn_idxs":[2,5,8,10,12,14]}`))
	if err != nil {
		t.Fatal(err)
	}
	if c.Layer(0).CacheWidth() != 2048 || c.Layer(2).CacheWidth() != 2*8*64 || len(c.CacheGroups()) != 1 {
		t.Errorf("widths %d and %d, groups %v", c.Layer(0).CacheWidth(), c.Layer(2).CacheWidth(), c.CacheGroups())
	}
	if _, after, heads := c.BlockNorms(); after != 0 || !heads {
		t.Errorf("%d norms after, norms of heads: %v", after, heads)
	}
	layout, adapted := c.Layout(), 0
	for _, l := range layout.Leaves {
		if l.Kind == Taps && (!slices.Equal(l.Shape, []int64{2048, 1, 3}) || !l.Vector()) {
			t.Errorf("%s has the shape %v", l.Name, l.Shape)
		}
		if l.Kind == Taps {
			adapted++
		}
	}
	if last := layout.Leaves[len(layout.Leaves)-1]; adapted != 10 || last.Parts[0].Name != "model.embedding_norm.weight" {
		t.Errorf("%d convolutions, the last tensor is %s", adapted, last.Parts[0].Name)
	}
}

// TestLFM2GGUF reads the keys that llama.cpp's converter writes, and refuses changes of them.
func TestLFM2GGUF(t *testing.T) {
	base := map[string]any{"general.architecture": "lfm2", "lfm2.embedding_length": int64(32), "lfm2.block_count": int64(3), "lfm2.attention.head_count": int64(4),
		"lfm2.attention.head_count_kv": []int64{0, 2, 0}, "lfm2.feed_forward_length": int64(48), "lfm2.context_length": int64(64), "lfm2.vocab_size": int64(100),
		"lfm2.shortconv.l_cache": int64(3), "lfm2.attention.layer_norm_rms_epsilon": 1e-5, "lfm2.rope.freq_base": 1e6}
	shapes := map[string][]int64{ggufEmbedding: {100, 32}}
	c, err := FromGGUF(base, shapes, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.KVHeads != 2 || c.HeadDim != 8 || !c.Tied || !slices.Equal(c.ShortConv.Layers, []bool{true, false, true}) || c.ShortConv.Width != 3 {
		t.Errorf("%+v, convolutions %+v", c, c.ShortConv)
	}
	for _, one := range []struct {
		key   string
		value any
		want  string
	}{
		{"attention.head_count_kv", []int64{0, 2}, "lists 2 layers"},
		{"attention.head_count_kv", []int64{2, 0, 1}, "head_count_kv is 1 for layer 2 and 2 for an earlier one"},
		{"attention.head_count_kv", []int64{0, 3, 0}, "num_key_value_heads"},
		{"attention.head_count_kv", []int64{0, -1, 0}, "head_count_kv has -1"},
		{"attention.head_count_kv", nil, "head_count_kv is missing"},
		{"attention.key_length", int64(16), "key_length is 16"},
		{"attention.sliding_window", int64(8), "sliding_window is 8"},
		{"attention.causal", false, "attention.causal"},
		{"shortconv.l_cache", int64(9), "conv_L_cache is 9"},
		{"shortconv.l_cache", int64(1), "l_cache is 1"},
		{"shortconv.l_cache", nil, "l_cache is missing"},
	} {
		changed := maps.Clone(base)
		if changed["lfm2."+one.key] = one.value; one.value == nil {
			delete(changed, "lfm2."+one.key)
		}
		_, err := FromGGUF(changed, shapes, nil)
		golden.WantError(t, err, one.want)
	}
}

// TestLFM2VL: the embedding of LFM2-VL is its head unless a key of the whole model prevents it. Both names of this key are in use.
func TestLFM2VL(t *testing.T) {
	for keys, tied := range map[string]bool{
		`"text_config":{"tie_embedding":false}`:                               true,
		`"tie_embedding":true,"text_config":{"model_type":"lfm2"}`:            true,
		`"tie_embedding":false,"text_config":{"tie_word_embeddings":false}`:   false,
		`"tie_word_embeddings":false,"text_config":{"model_type":"lfm2"}`:     false,
		`"tie_word_embeddings":false,"text_config":{"tie_embedding":true}`:    true,
		`"tie_word_embeddings":null,"text_config":{"num_hidden_layers":2}`:    true,
		`"tie_word_embeddings":true,"tie_embedding":false,"text_config":{}`:   false,
		`"architectures":["Lfm2VlForConditionalGeneration"],"text_config":{}`: true,
	} {
		c, err := ParseJSON([]byte(`{"model_type":"lfm2_vl",` + keys + `}`))
		if err != nil || c.Family != LFM2 || c.Wrapper != "lfm2_vl" || c.Tied != tied {
			t.Errorf("%s: %v, %s in %s, tied: %v", keys, err, c.Family, c.Wrapper, c.Tied)
		}
	}
}
