package weights

import (
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// deltaConfig returns a valid model of two layers. The first has a gated delta rule with heads of size dim.
func deltaConfig(keyHeads, valueHeads, dim int) arch.Config {
	c := arch.Config{Family: arch.Qwen35, VocabSize: 11, Hidden: 8, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 8, Rope: arch.Rope{Dim: 4}, FFN: 6, MaxPosition: 32}
	c.GatedDelta = &arch.GatedDelta{Layers: []bool{true, false}, KeyHeads: keyHeads, ValueHeads: valueHeads, KeyDim: dim, ValueDim: dim, Width: 4}
	return c.WithDefaults()
}

// writtenGGUF writes random weights and returns them with the path of the file.
func writtenGGUF(t *testing.T, c arch.Config, dtype DType) (map[string][]float32, string) {
	t.Helper()
	values, read := randomWeights(c, 5)
	file := filepath.Join(t.TempDir(), "m.gguf")
	if err := WriteGGUF(file, c, map[string]any{}, read, dtype); err != nil {
		t.Fatal(err)
	}
	return values, file
}

// TestColumnsOfHeads reads a matrix whose columns are heads in another order: by rows, and in blocks if each head has whole blocks.
func TestColumnsOfHeads(t *testing.T) {
	const name = "model.layers.0.linear_attn.out_proj.weight"
	for dim, whole := range map[int]bool{32: true, 16: false} {
		c := deltaConfig(2, 6, dim)
		_, file := writtenGGUF(t, c, Q8_0)
		s := openChecked(t, file)
		want, row := readAll(t, s, name), int64(c.GatedDelta.Values())
		blocks := make([]byte, 3*Q8_0.RowBytes(row))
		err := s.Blocks(name, 2, 5, blocks)
		if s.InBlocks(name) != whole {
			t.Errorf("heads of %d: read in blocks is %v", dim, !whole)
		}
		if !whole {
			golden.WantError(t, err, "heads of 16 columns", "blocks of 32")
			continue
		}
		got := make([]float32, 3*row)
		if encodings[Q8_0].decode(got, blocks); err != nil || !slices.Equal(got, want[2*row:5*row]) {
			t.Errorf("blocks of rows 2 to 4 differ: %v", err)
		}
	}
}

// TestRefusedHeads: matrices whose sizes do not match the heads of the architecture are refused.
func TestRefusedHeads(t *testing.T) {
	for _, one := range []struct {
		name  string
		shape []int64
	}{
		{"blk.0.attn_qkv.weight", []int64{39, 8}},
		{"blk.0.ssm_a", []int64{5}},
		{"blk.0.ssm_out.weight", []int64{8, 23}},
	} {
		c := deltaConfig(2, 6, 4)
		o := newOpener("")
		o.config = c
		n, _ := numel(one.shape)
		err := o.addGGUF([]ggufTensor{{name: one.name, dtype: F32, shape: one.shape, data: make([]byte, 4*n)}})
		golden.WantError(t, err, one.name, "6 heads")
	}
}

// TestDecays: decays that a folder cannot store and decays that a GGUF file cannot store are refused.
func TestDecays(t *testing.T) {
	form := ggufForm{decay: true}
	for _, v := range []float64{0, math.Copysign(0, -1), 1, math.Inf(-1), math.NaN()} {
		golden.WantError(t, form.decode([]float32{-1, float32(v)}), "value 1", "must be negative")
	}
	for _, v := range []float64{-200, 200, math.Inf(1), math.NaN()} {
		golden.WantError(t, form.encode([]float32{1, float32(v)}), "value 1", "exponential")
	}
	values := []float32{-87, -3, 0, 2.5, 88}
	stored := slices.Clone(values)
	if err := form.encode(stored); err != nil || stored[2] != -1 {
		t.Errorf("%v %v", stored, err)
	}
	if err := form.decode(stored); err != nil || math.Abs(float64(stored[0]-values[0])) > 1e-5 || math.Abs(float64(stored[3]-values[3])) > 1e-6 {
		t.Errorf("%v %v, want %v", stored, err, values)
	}
}

// TestPredictionBlocks: the blocks after the last layer that nextn_predict_layers counts are skipped, and no others.
func TestPredictionBlocks(t *testing.T) {
	c := deltaConfig(2, 2, 4)
	weights, _ := randomWeights(c, 3)
	for i := range weights["model.layers.0.linear_attn.A_log"] {
		weights["model.layers.0.linear_attn.A_log"][i] = -1
	}
	file := func(blocks, next uint32) string {
		all := c
		all.Layers = int(blocks)
		all.GatedDelta = &arch.GatedDelta{}
		*all.GatedDelta = *c.GatedDelta
		all.GatedDelta.Layers = append([]bool{true, false}, make([]bool, blocks-2)...)
		w := ggufOf(all, weights)
		for key, n := range map[string]uint32{"ssm.conv_kernel": 4, "ssm.state_size": 4, "ssm.group_count": 2, "ssm.time_step_rank": 2, "ssm.inner_size": 8,
			"full_attention_interval": 2, "rope.dimension_count": 4, "nextn_predict_layers": next} {
			w.u32("qwen35."+key, n)
		}
		w.key("qwen35.rope.dimension_sections", ggufArray, []byte{ggufInt32, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
		w.tensor("blk.2.attn_norm.weight", 0, make([]byte, 32), 8)
		w.tensor("blk.2.nextn.eh_proj.weight", 0, make([]byte, 512), 8, 16)
		return writeGGUF(t, w)
	}
	s := openChecked(t, file(3, 1))
	if got := s.Config(); got.Layers != 2 || !slices.Equal(got.GatedDelta.Layers, []bool{true, false}) || len(s.Names()) != len(c.Layout().Tensors()) {
		t.Errorf("%+v with %d tensors", got, len(s.Names()))
	}
	if notes := s.Notes(); len(notes) != 1 || notes[0] != "2 tensors of blocks that predict tokens after the next one (nextn) are not read" {
		t.Errorf("%q", notes)
	}
	_, err := Open(file(2, 0))
	golden.WantError(t, err, "blk.2.attn_norm.weight", "unexpected")
	_, err = Open(file(3, 3))
	golden.WantError(t, err, "nextn_predict_layers is 3")
}
