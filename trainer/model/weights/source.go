package weights

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// Source is an opened checkpoint: its architecture, and its tensors under Hugging Face names. The files are memory-mapped
// read-only; a Source does not copy the weights. Its methods, except Close, Check and Alone, may be called from several
// goroutines at once.
type Source struct {
	path    string
	config  arch.Config
	tensors map[string]tensor
	packed  map[string]tensor // tensors of a quantised folder that are not yet paired with their scales
	others  map[string]tensor // tensors of parts other than the language model
	form    *Form             // nil: the folder contains only a language model
	names   []string
	notes   []string
	gguf    map[string]any
	maps    []*mapping

	wrapper  string            // beginning of names in the file that replaces "model."; "": names are the architecture's
	assigned map[string]string // tensors that are in no file, with the files to which the index assigns them
}

// Open reads the headers of a Hugging Face folder or of a .gguf file, and maps the weights. It refuses architectures that
// the trainer does not implement, and files with inconsistent headers. Check compares the tensors with the architecture.
func Open(path string) (*Source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("weights: %w", err)
	}
	s := &Source{path: path, tensors: map[string]tensor{}, packed: map[string]tensor{}, others: map[string]tensor{}}
	switch {
	case info.IsDir():
		err = s.openFolder()
	case strings.EqualFold(filepath.Ext(path), ".gguf"):
		err = s.openGGUF()
	default:
		err = errors.New("this is neither a Hugging Face folder nor a .gguf file")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("weights: %s: %w", path, err), s.Close())
	}
	s.names = slices.Sorted(maps.Keys(s.tensors))
	return s, nil
}

// Files of a Hugging Face folder. The weight files are searched in this order.
const (
	safetensorsFile  = "model.safetensors"
	safetensorsIndex = "model.safetensors.index.json"
	binFile          = "pytorch_model.bin"
	binIndex         = "pytorch_model.bin.index.json"
	configFile       = "config.json"
	generationFile   = "generation_config.json"
)

// Limits on a folder's JSON files: far above the needs of dense models, and small enough to parse in bounded memory.
const (
	maxConfigBytes = 1 << 20
	maxHeaderBytes = 16 << 20 // safetensors headers and shard indexes: room for maxTensors names
	maxTensors     = 100_000
)

// readConfig parses config.json in a Hugging Face folder, and generation_config.json if it exists. It returns notes about ignored keys.
func readConfig(dir string) (_ arch.Config, notes []string, err error) {
	data, err := durable.ReadSmall(filepath.Join(dir, configFile), maxConfigBytes)
	if err != nil {
		return arch.Config{}, nil, fmt.Errorf("%s: %w", configFile, err)
	}
	cfg, err := arch.ParseJSON(data)
	if err != nil {
		return arch.Config{}, nil, fmt.Errorf("%s: %w", configFile, err)
	}
	for _, note := range arch.Notes(cfg) {
		notes = append(notes, configFile+": "+note)
	}
	data, err = durable.ReadSmall(filepath.Join(dir, generationFile), maxConfigBytes)
	var more []string
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return cfg, notes, nil
	case err == nil && blank(data):
		return cfg, append(notes, generationFile+" is empty, and is ignored"), nil
	case err == nil:
		more, err = cfg.ReadGeneration(data)
	}
	if err != nil {
		return arch.Config{}, nil, fmt.Errorf("%s: %w", generationFile, err)
	}
	for _, note := range more {
		notes = append(notes, generationFile+": "+note)
	}
	return cfg, notes, nil
}

func blank(data []byte) bool { return len(bytes.TrimSpace(data)) == 0 }

// openFolder opens the first weight file, or the first index, that is not empty.
func (s *Source) openFolder() (err error) {
	if s.config, s.notes, err = readConfig(s.path); err != nil {
		return err
	}
	for _, candidate := range []struct {
		name string
		open func(file string) error
	}{
		{safetensorsFile, s.addSafetensors},
		{safetensorsIndex, func(file string) error { return s.openIndex(file, ".safetensors", s.addSafetensors) }},
		{binFile, s.addBin},
		{binIndex, func(file string) error { return s.openIndex(file, ".bin", s.addBin) }},
	} {
		switch empty, err := s.empty(candidate.name); {
		case err == nil && !empty:
			if err := candidate.open(candidate.name); err != nil {
				return fmt.Errorf("%s: %w", candidate.name, err)
			}
			if err := s.dequantise(); err != nil {
				return fmt.Errorf("%s: %w", candidate.name, err)
			}
			return s.rename()
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	return fmt.Errorf("no weights found: the folder must contain %s, %s, %s or %s%s", safetensorsFile, safetensorsIndex, binFile, binIndex, inBrackets(s.notes))
}

// inBrackets formats notes for the end of a message.
func inBrackets(notes []string) string {
	if len(notes) == 0 {
		return ""
	}
	return " (" + strings.Join(notes, "; ") + ")"
}

// empty reports whether a file of the folder has no bytes, which can be the result of an interrupted copy, and adds a note
// if so.
func (s *Source) empty(file string) (bool, error) {
	info, err := os.Stat(filepath.Join(s.path, file))
	if err != nil || !info.Mode().IsRegular() || info.Size() > 0 {
		return false, err
	}
	s.notes = append(s.notes, file+" is empty, and is ignored")
	return true, nil
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
func (s *Source) Close() error {
	var errs []error
	if s.form != nil {
		s.form.keepMapped(s.maps)
	} else {
		for _, m := range s.maps {
			errs = append(errs, m.close())
		}
	}
	s.maps, s.tensors, s.names, s.others, s.form = nil, nil, nil, nil, nil
	return errors.Join(errs...)
}

func (s *Source) has(name string) bool {
	_, plain := s.tensors[name]
	_, packed := s.packed[name]
	_, beside := s.others[name]
	return plain || packed || beside
}

// add registers a tensor of the given file in one of the maps of s, under its Hugging Face name. It refuses a name that any of the
// maps has.
func add(s *Source, tensors map[string]tensor, file, name string, t tensor) error {
	if s.has(name) {
		return fmt.Errorf("tensor %s occurs twice; the second is in %s", name, file)
	}
	tensors[name] = t
	return nil
}

// scan maps a file, which stays mapped as long as the Source, and calls f with its bytes.
func (s *Source) scan(path string, f func(file []byte) error) error {
	m, err := mapFile(path)
	if err != nil {
		return err
	}
	s.maps = append(s.maps, m)
	return guardMapped(func() error { return f(m.data) })
}
