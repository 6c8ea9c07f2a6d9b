package weights

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// openGGUF maps a GGUF file, and registers its tensors under their Hugging Face names and with Hugging Face's order of
// rows.
func (o *opener) openGGUF() error {
	var tensors []ggufTensor
	err := o.scan(o.path, func(file []byte) (err error) {
		o.gguf, tensors, err = parseGGUF(file)
		return err
	})
	if err != nil {
		return err
	}
	if o.config, err = ggufConfig(o.gguf, tensors); err != nil {
		return err
	}
	return o.addGGUF(tensors)
}

// ggufConfig derives the architecture from the metadata and the shapes of the tensors.
func ggufConfig(meta map[string]any, tensors []ggufTensor) (arch.Config, error) {
	shapes := map[string][]int64{}
	var ropeFactors []float32
	for _, t := range tensors {
		shapes[t.name] = t.shape
		if t.name != arch.GGUFRopeFactors {
			continue
		}
		if t.dtype != F32 || len(t.data) > maxRopeFactors {
			return arch.Config{}, fmt.Errorf("tensor %s: %v %s: expected F32 frequency factors, one for each pair of a head's dimensions", t.name,
				t.shape, t.dtype)
		}
		ropeFactors = make([]float32, len(t.data)/4)
		if err := guardMapped(func() error { decodeF32(ropeFactors, t.data); return nil }); err != nil {
			return arch.Config{}, err
		}
	}
	return arch.FromGGUF(meta, shapes, ropeFactors)
}

const maxRopeFactors = 1 << 16 // bytes

// addGGUF registers the tensors under their Hugging Face names.
func (o *opener) addGGUF(tensors []ggufTensor) error {
	known := map[string][]arch.Tensor{}
	for _, t := range o.config.Layout().Tensors() {
		known[t.GGUF] = append(known[t.GGUF], t)
		if other := otherGGUF(t); other != t.GGUF {
			known[other] = append(known[other], t)
		}
	}
	next, unread := arch.NextGGUF(o.gguf, o.config), 0
	for _, g := range tensors {
		if g.name == arch.GGUFRopeFactors || o.config.UnreadGGUF(g.name) { // the former is in Config.Rope.Scaling already
			continue
		}
		if block, ok := blockOf(g.name); ok && block >= o.config.Layers && block < o.config.Layers+next {
			unread++
			continue
		}
		if err := o.addNamed(g, known[g.name]); err != nil {
			return fmt.Errorf("tensor %s: %w", g.name, err)
		}
	}
	if unread > 0 {
		o.notes = append(o.notes, fmt.Sprintf("%d tensors of blocks that predict tokens after the next one (nextn) are not read", unread))
	}
	return nil
}

// otherGGUF returns the other name that files have for experts: gate and up may be one tensor or two. Other tensors have one name.
func otherGGUF(t arch.Tensor) string {
	const gate, up, both = "ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps"
	one := gate
	if t.Fused.Row > 0 {
		one = up
	}
	return strings.NewReplacer(both, one, gate, both, up, both).Replace(t.GGUF)
}

// blockOf returns the number of the block to which a tensor belongs.
func blockOf(name string) (int, bool) {
	number, _, inside := strings.Cut(strings.TrimPrefix(name, "blk."), ".")
	block, err := strconv.Atoi(number)
	return block, inside && err == nil && strings.HasPrefix(name, "blk.")
}

// addNamed registers a tensor of the file under the names that the architecture has for it: one tensor, or the tensors that
// it stacks.
func (o *opener) addNamed(g ggufTensor, named []arch.Tensor) error {
	if len(named) == 0 {
		return fmt.Errorf("unexpected: a %s model of this shape has no tensor with this name", o.config.Family)
	}
	for _, want := range named {
		one, err := slice(g, want)
		if err != nil {
			return err
		}
		t, err := newTensor(one.shape, one.dtype, one.data)
		if err != nil {
			return err
		}
		t.ggufForm = formOf(want)
		if err := t.check(t.shape); err != nil {
			return err
		}
		if err := add(o, o.tensors, o.path, want.Name, t); err != nil {
			return err
		}
	}
	return nil
}

// slice returns the part of a stacked tensor that the architecture expects, and any other tensor unchanged.
func slice(g ggufTensor, want arch.Tensor) (ggufTensor, error) {
	if want.Stack == 0 {
		switch {
		case len(g.shape) == 1 && len(want.Shape) == 2 && want.Shape[0] == 1: // a matrix with one row
			g.shape = []int64{1, g.shape[0]}
		case len(want.Shape) == 3 && slices.Equal(g.shape, want.GGUFShape()):
			g.shape = want.Shape
		}
		return g, nil
	}
	if len(g.shape) != len(want.Shape)+1 || g.shape[0] != want.Stack {
		return g, fmt.Errorf("shape %v: %d stacked tensors of shape %v are required", g.shape, want.Stack, want.Shape)
	}
	size, err := storedBytes(g.shape[1:], g.dtype)
	if err != nil {
		return g, err
	}
	g.shape, g.data = g.shape[1:], g.data[want.Index*size:][:size]
	if f := want.Fused; f.Step == 1 && g.shape[0] == f.Rows && want.Shape[0] != f.Rows { // gate and up in one tensor
		row := size / f.Rows
		g.shape = []int64{want.Shape[0], g.shape[1]}
		g.data = g.data[f.Row*row:][:want.Shape[0]*row]
	}
	return g, nil
}
