package weights

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/arch"
)

// Names of tensors that every architecture has.
const (
	bodyPrefix    = "model."
	embeddingName = "model.embed_tokens.weight"
	headName      = "lm_head.weight"
)

// rename gives the tensors of a folder the names that the architecture has for them: without the prefix of a wrapper, the
// experts of a fused tensor one by one, and a tied head that is stored in place of the embedding as the embedding.
func (s *Source) rename() error {
	expected := s.config.Layout().Tensors()
	s.unwrap(expected)
	if err := s.split(expected); err != nil {
		return err
	}
	head, stored := s.tensors[headName]
	if _, both := s.tensors[embeddingName]; s.config.Tied && stored && !both {
		delete(s.tensors, headName)
		s.tensors[embeddingName] = head
		s.notes = append(s.notes, fmt.Sprintf("%s is read as %s: the two are tied", headName, embeddingName))
	}
	return nil
}

// unwrap finds what stands for "model." in the names of a wrapped model, such as module.model. (DistributedDataParallel),
// _orig_mod.model. (torch.compile) or model.language_model. (the text model of a vision model), and renames all tensors that
// begin with it.
func (s *Source) unwrap(expected []arch.Tensor) {
	body, ok := s.prefixOf(expected, func(t arch.Tensor) (string, bool) {
		rest, layer := strings.CutPrefix(t.Name, bodyPrefix+"layers.0.")
		return "layers.0." + rest, layer && t.Fused == ""
	})
	if !ok || body == bodyPrefix {
		return
	}
	head, _ := s.prefixOf(expected, func(t arch.Tensor) (string, bool) { return t.Name, t.Name == headName })
	renamed := map[string]tensor{}
	for name, t := range s.tensors {
		to := name
		if rest, inside := strings.CutPrefix(name, body); inside {
			to = bodyPrefix + rest
		}
		if name == head+headName {
			to = headName
		}
		if _, twice := renamed[to]; twice {
			return
		}
		renamed[to] = t
	}
	s.tensors, s.wrapper = renamed, body
	s.notes = append(s.notes, fmt.Sprintf("names begin with %q where %q is meant: they are read so", body, bodyPrefix))
}

// prefixOf returns what stands before the ending of a tensor in the names of the file. tail returns the ending, false for
// tensors that are of no use. It must be the same for one tensor of the right shape, and for no other.
func (s *Source) prefixOf(expected []arch.Tensor, tail func(arch.Tensor) (string, bool)) (prefix string, ok bool) {
	i := slices.IndexFunc(expected, func(t arch.Tensor) bool { _, use := tail(t); return use })
	if i < 0 {
		return "", false
	}
	ending, _ := tail(expected[i])
	for name, t := range s.tensors {
		before, ends := strings.CutSuffix(name, ending)
		if !ends || before != "" && !strings.HasSuffix(before, ".") || !slices.Equal(t.shape, expected[i].Shape) {
			continue
		}
		if ok {
			return "", false
		}
		prefix, ok = before, true
	}
	return prefix, ok
}

// split replaces fused tensors of experts by the experts' own.
func (s *Source) split(expected []arch.Tensor) error {
	fused := map[string]bool{}
	for _, want := range expected {
		all, ok := s.tensors[want.Fused]
		if want.Fused == "" || !ok {
			continue
		}
		fused[want.Fused] = true
		shape := []int64{want.Stack, want.FusedRows, want.Shape[1]}
		if !slices.Equal(all.shape, shape) {
			return fmt.Errorf("tensor %s has the fused experts in shape %v, config.json requires %v", want.Fused, all.shape, shape)
		}
		one, err := all.matrix(want.Index*want.FusedRows+want.FusedRow, want.Shape)
		if err == nil {
			err = s.add("fused experts", want.Name, one)
		}
		if err != nil {
			return fmt.Errorf("tensor %s: %w", want.Fused, err)
		}
	}
	for name := range fused {
		delete(s.tensors, name)
	}
	return nil
}
