package weights

import (
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/arch"
)

// openGGUF maps a GGUF file, and registers its tensors under their Hugging Face names and in their order of rows.
func (s *Source) openGGUF() error {
	m, err := mapFile(s.path)
	if err != nil {
		return err
	}
	s.maps = append(s.maps, m)
	var tensors []ggufTensor
	err = guardMapped(func() (err error) {
		s.gguf, tensors, err = parseGGUF(m.data)
		return err
	})
	if err != nil {
		return err
	}
	if s.config, err = ggufConfig(s.gguf, tensors); err != nil {
		return err
	}
	return s.addGGUF(tensors)
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
			return arch.Config{}, fmt.Errorf("tensor %s: %v %s: expected F32 frequency factors, a number for each pair of a head's values", t.name, t.shape, t.dtype)
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
func (s *Source) addGGUF(tensors []ggufTensor) error {
	known := map[string]arch.Tensor{}
	for _, t := range s.config.Layout().Tensors() {
		known[t.GGUF] = t
	}
	for _, g := range tensors {
		if g.name == arch.GGUFRopeFactors { // it is in Config.RopeScaling already
			continue
		}
		want, ok := known[g.name]
		t, err := s.ggufTensor(g, want)
		if err == nil && !ok {
			err = fmt.Errorf("unexpected: a %s model of this shape has no tensor with this name", s.config.Family)
		}
		if err == nil {
			err = s.add(s.path, want.Name, t)
		}
		if err != nil {
			return fmt.Errorf("tensor %s: %w", g.name, err)
		}
	}
	return nil
}

// ggufTensor makes a tensor of the file, with the order of rows that the architecture has in GGUF files.
func (s *Source) ggufTensor(g ggufTensor, want arch.Tensor) (tensor, error) {
	t, err := newTensor(g.shape, g.dtype, g.data)
	if err != nil || want.Pairs == 0 {
		return t, err
	}
	if count, _ := rows(t.shape); count%(2*want.Pairs) != 0 {
		return t, fmt.Errorf("%d rows are not whole heads of %d", count, 2*want.Pairs)
	}
	t.ropePairs = want.Pairs
	return t, nil
}
