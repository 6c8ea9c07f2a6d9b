package weights

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// headName is the output head's, in every architecture.
const headName = "lm_head.weight"

// embeddingName returns the name of the embedding.
func (s *Source) embeddingName() string { return s.config.Body() + "embed_tokens.weight" }

// rename gives the tensors of a folder the names that the architecture has for them: without the prefix of a wrapper, the
// experts of a fused tensor one by one, and a tied head that is stored in place of the embedding as the embedding.
func (s *Source) rename() error {
	expected := s.config.Layout().Tensors()
	if err := s.setAside(s.unwrap(expected)); err != nil {
		return err
	}
	if err := s.split(expected); err != nil {
		return err
	}
	if err := s.tie(); err != nil {
		return err
	}
	head, stored := s.tensors[headName]
	if _, both := s.tensors[s.embeddingName()]; s.config.Tied && stored && !both {
		delete(s.tensors, headName)
		s.tensors[s.embeddingName()] = head
		s.notes = append(s.notes, fmt.Sprintf("%s is read as %s: the two are tied", headName, s.embeddingName()))
	}
	return nil
}

// unwrap finds what the names of the file have where the architecture's have Config.Body, such as module.model.
// (DistributedDataParallel), _orig_mod.model. (torch.compile) or language_model.model. (a language model in a vision model), and renames
// all tensors that begin with it. stored has the names in the file of the renamed tensors.
func (s *Source) unwrap(expected []arch.Tensor) (stored map[string]string) {
	want := s.config.Body()
	first := slices.IndexFunc(expected, func(t arch.Tensor) bool { return strings.HasPrefix(t.Name, want+"layers.0.") && t.Fused.Name == "" })
	if first < 0 {
		return nil
	}
	body, ok := s.prefixOf(strings.TrimPrefix(expected[first].Name, want), expected[first].Shape)
	if !ok {
		return nil
	}
	head, _ := s.prefixOf(headName, []int64{int64(s.config.VocabSize), int64(s.config.Hidden)})
	renamed, stored := map[string]tensor{}, map[string]string{}
	for name, t := range s.tensors {
		to := name
		if rest, inside := strings.CutPrefix(name, body); inside && !elsewhere(name) {
			to = want + rest
		}
		if name == head+headName {
			to = headName
		}
		if _, twice := renamed[to]; twice {
			return nil
		}
		renamed[to], stored[to] = t, name
	}
	s.tensors = renamed
	if body != want {
		s.wrapper = body
		s.notes = append(s.notes, fmt.Sprintf("names begin with %q where %q is meant: they are read so", body, want))
	}
	return stored
}

// prefixOf returns what stands before the ending of a tensor's name in the file. It must be the same for one tensor of the shape, and for
// no other.
func (s *Source) prefixOf(ending string, shape []int64) (prefix string, ok bool) {
	for name, t := range s.tensors {
		before, ends := strings.CutSuffix(name, ending)
		if !ends || elsewhere(name) || before != "" && !strings.HasSuffix(before, ".") || !slices.Equal(t.shape, shape) {
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
		name := want.Fused.Name
		all, ok := s.tensors[name]
		if name == "" || !ok {
			continue
		}
		fused[name] = true
		one, err := all.unfused(want)
		if err == nil {
			err = s.add("fused experts", want.Name, one)
		}
		if err != nil {
			return fmt.Errorf("tensor %s: %w", name, err)
		}
	}
	for name := range fused {
		delete(s.tensors, name)
	}
	return nil
}
