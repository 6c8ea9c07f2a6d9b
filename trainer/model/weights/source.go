package weights

import (
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// Source is an opened checkpoint: its architecture, and its tensors under Hugging Face names. The files are memory-mapped
// read-only; a Source does not copy the weights. Its methods, except Close, Check and Alone, may be called from several
// goroutines at once.
type Source struct {
	path    string
	config  arch.Config
	tensors map[string]tensor
	names   []string // sorted
	form    *Form    // nil: the folder contains only a language model
	notes   []string
	gguf    map[string]any
	maps    []*mapping

	wrapper  string            // beginning of names in the file that replaces "model."; "": names are the architecture's
	assigned map[string]string // tensors that are in no file, with the files to which the index assigns them
}

// Config returns the architecture from config.json and generation_config.json, or from GGUF metadata.
func (s *Source) Config() arch.Config { return s.config }

// Notes lists, as sentences, tensors and files that are ignored on purpose or read under another name.
func (s *Source) Notes() []string { return s.notes }

// GGUFMeta returns the metadata of a GGUF file, nil for other formats. Values are string, bool, int64
// (uint64 above its range), float64, or slices []string, []bool, []int64, []float64.
func (s *Source) GGUFMeta() map[string]any { return s.gguf }

// Read widens rows rowFrom to rowTo-1 of a tensor to float32, and dequantises them if necessary. A row has all dimensions
// except the first; a vector has rows of one value. dst must have the length of these rows. A file that was cut short
// after Open gives an error.
func (s *Source) Read(name string, rowFrom, rowTo int64, dst []float32) error {
	return s.use(name, func(t tensor) error { return t.read(rowFrom, rowTo, dst) })
}

// use calls f with a tensor, whose bytes f may read.
func (s *Source) use(name string, f func(t tensor) error) error {
	t, ok := s.tensors[name]
	if !ok {
		return fmt.Errorf("weights: %s: no tensor %s", s.path, name)
	}
	if err := guardMapped(func() error { return f(t) }); err != nil {
		return fmt.Errorf("weights: %s: %s: %w", s.path, name, err)
	}
	return nil
}

// Blocks copies rows rowFrom to rowTo-1 of a tensor to dst, in the blocks of the tensor's type, as they are in the file.
// dst must have the size of these rows. The rows of queries and keys in a GGUF file are reordered as by Read.
func (s *Source) Blocks(name string, rowFrom, rowTo int64, dst []byte) error {
	return s.use(name, func(t tensor) error { return t.blocks(rowFrom, rowTo, dst) })
}

// TypeOf returns the type in which a tensor is stored, "" if there is no such tensor.
func (s *Source) TypeOf(name string) DType { return s.tensors[name].dtype }

// InBlocks reports whether Blocks can copy a tensor.
func (s *Source) InBlocks(name string) bool {
	t, ok := s.tensors[name]
	return ok && t.movesInBlocks()
}

// DType returns the type in which a copy of the checkpoint is written: BF16 or F16 if the tensors have this type, except those of Wide. For
// a quantised folder it is BF16, because the unquantised models are published in BF16. Otherwise it is F32, which represents all
// other types exactly.
func (s *Source) DType() DType {
	if s.config.Quantisation != nil {
		return BF16
	}
	all := F32
	for _, t := range s.tensors {
		switch {
		case t.dtype == F32 && s.gguf == nil:
		case t.dtype != BF16 && t.dtype != F16, all != F32 && t.dtype != all:
			return F32
		default:
			all = t.dtype
		}
	}
	return all
}

// Wide returns the names of the tensors that are stored in float32 although DType has 16 bits. Qwen 3.5 is published with such tensors. A
// copy keeps their type.
func (s *Source) Wide() map[string]bool {
	if s.DType() == F32 {
		return nil
	}
	wide := map[string]bool{}
	for name, t := range s.tensors {
		if t.dtype == F32 {
			wide[name] = true
		}
	}
	return wide
}

// Close unmaps the files.
func (s *Source) Close() (err error) {
	if s.form != nil {
		s.form.keepMapped(s.maps)
	} else {
		err = unmap(s.maps)
	}
	s.maps, s.tensors, s.names, s.form = nil, nil, nil, nil
	return err
}
