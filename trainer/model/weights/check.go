package weights

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// maxReported is the largest number of faults in an error.
const maxReported = 8

// Check compares the tensors with the architecture's, and reads every value. Missing and unexpected tensors, wrong shapes,
// NaN and infinite values are errors that name the tensor. Two tensors are ignored and listed in Notes: the copy of the
// embedding as lm_head.weight in files of tied models, and the derived rotary_emb.inv_freq in old files. Call Check once,
// before Read.
func (s *Source) Check() error {
	expected := s.config.Layout().Tensors()
	want := make(map[string][]int64, len(expected))
	for _, t := range expected {
		want[t.Name] = t.Shape
	}
	settings := configFile
	if s.gguf != nil {
		settings = "the metadata"
	}
	var absent, faults, unexpected []error
	for _, t := range expected {
		if stored, ok := s.tensors[t.Name]; !ok {
			absent = append(absent, s.absence(t))
		} else if !slices.Equal(stored.shape, t.Shape) {
			faults = append(faults, fmt.Errorf("tensor %s has shape %v, %s requires %v", t.Name, stored.shape, settings, t.Shape))
		}
	}
	for _, name := range slices.Clone(s.names) {
		if _, ok := want[name]; ok {
			continue
		}
		if note, err := s.droppable(name); err != nil {
			unexpected = append(unexpected, err)
		} else {
			s.drop(name, note)
		}
	}
	faults = slices.Concat(limitFaults(absent), limitFaults(faults), limitFaults(unexpected))
	if len(absent) > 0 && s.wrapper != "" {
		faults = append(faults, fmt.Errorf("the names in the file have %q, which is read as %q", s.wrapper, s.config.Body()))
	}
	if len(faults) == 0 {
		faults = limitFaults(s.scanValues())
	}
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("weights: %s: %w", s.path, oneLine(faults))
}

// absence returns the error for a missing tensor.
func (s *Source) absence(t arch.Tensor) error {
	if shard, ok := s.assigned[t.Name]; ok {
		return fmt.Errorf("tensor %s is missing from %s, to which weight_map assigns it", t.Name, shard)
	}
	if t.Fused.Name != "" {
		return fmt.Errorf("tensor %s is missing, both alone and in the fused experts %s", t.Name, t.Fused.Name)
	}
	return fmt.Errorf("tensor %s is missing", t.Name)
}

// limitFaults returns faults if there are at most maxReported. Otherwise it replaces the rest by one error with their number.
func limitFaults(faults []error) []error {
	if more := len(faults) - maxReported; more > 0 {
		return append(faults[:maxReported:maxReported], fmt.Errorf("and %d more", more))
	}
	return faults
}

// droppable returns a note that an unexpected tensor is ignored, or an error if it must not be ignored.
func (s *Source) droppable(name string) (note string, err error) {
	switch {
	case name == headName && s.config.Tied:
		same, err := sameValues(s.tensors, name, embeddingName(s.config))
		if err != nil {
			return "", err
		}
		if !same {
			return "", fmt.Errorf("unexpected tensor %s: it differs from %s although tie_word_embeddings is true", headName, embeddingName(s.config))
		}
		return fmt.Sprintf("%s equals %s: the two are tied, and it is ignored", headName, embeddingName(s.config)), nil
	case strings.HasSuffix(name, ".rotary_emb.inv_freq"):
		return name + " is derived from the config, and is ignored", nil
	}
	return "", fmt.Errorf("unexpected tensor %s: the architecture in config.json has no tensor with this name", name)
}

func (s *Source) drop(name, note string) {
	delete(s.tensors, name)
	s.names = slices.DeleteFunc(s.names, func(n string) bool { return n == name })
	s.notes = append(s.notes, note)
}

// scanChunk is the number of values that the scans widen at a time.
const scanChunk = 1 << 16

// scanValues looks for NaN and infinities, tensor by tensor.
func (s *Source) scanValues() (faults []error) {
	buffer := make([]float32, scanChunk)
	for _, name := range s.names {
		if err := s.tensors[name].eachChunk(buffer, checkFinite); err != nil {
			faults = append(faults, fmt.Errorf("tensor %s: %w", name, err))
		}
	}
	return faults
}

// checkFinite refuses NaN and infinities. at is the index of the first value in its tensor.
func checkFinite(at int64, values []float32) error {
	if i := slices.IndexFunc(values, func(v float32) bool { return v-v != 0 }); i >= 0 { // NaN for NaN and Inf
		return fmt.Errorf("%g at element %d", values[i], at+int64(i))
	}
	return nil
}

// sameValues reports whether tensors a and b have the same shape and values.
func sameValues(tensors map[string]tensor, a, b string) (bool, error) {
	ta, tb := tensors[a], tensors[b]
	if !slices.Equal(ta.shape, tb.shape) {
		return false, nil
	}
	var other []float32
	same := true
	err := ta.eachChunk(make([]float32, scanChunk), func(at int64, values []float32) error {
		_, length := rows(ta.shape)
		other = slices.Grow(other[:0], len(values))[:len(values)]
		if err := guardMapped(func() error { return tb.read(at/length, (at+int64(len(values)))/length, other) }); err != nil {
			return err
		}
		same = same && slices.Equal(values, other)
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("comparing %s with %s: %w", a, b, err)
	}
	return same, nil
}

// oneLine joins errors with semicolons into one message.
func oneLine(errs []error) error {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}
