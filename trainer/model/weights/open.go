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
	"github.com/mgrpo/mgrpo/trainer/internal/texts"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// opener collects the tensors of a checkpoint's files and gives them their Hugging Face names.
type opener struct {
	path    string
	config  arch.Config
	tensors map[string]tensor
	packed  map[string]tensor // tensors of a quantised folder that are not yet paired with their scales
	others  map[string]tensor // tensors of parts other than the language model
	form    *Form             // nil: the folder contains only a language model
	notes   []string
	gguf    map[string]any
	maps    []*mapping

	wrapper  string            // beginning of names in the file that replaces "model."; "": names are the architecture's
	assigned map[string]string // tensors that are in no file, with the files to which the index assigns them
}

func newOpener(path string) *opener {
	return &opener{path: path, tensors: map[string]tensor{}, packed: map[string]tensor{}, others: map[string]tensor{}}
}

// Open reads the headers of a Hugging Face folder or of a .gguf file, and maps the weights. It refuses architectures that
// the trainer does not implement, and files with inconsistent headers. Check compares the tensors with the architecture.
func Open(path string) (*Source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("weights: %w", err)
	}
	o := newOpener(path)
	switch {
	case info.IsDir():
		err = o.openFolder()
	case strings.EqualFold(filepath.Ext(path), ".gguf"):
		err = o.openGGUF()
	default:
		err = errors.New("this is neither a Hugging Face folder nor a .gguf file")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("weights: %s: %w", path, err), unmap(o.maps))
	}
	return o.source(), nil
}

// source returns what was collected.
func (o *opener) source() *Source {
	return &Source{path: o.path, config: o.config, tensors: o.tensors, names: slices.Sorted(maps.Keys(o.tensors)), notes: o.notes, form: o.form, gguf: o.gguf,
		maps: o.maps, wrapper: o.wrapper, assigned: o.assigned}
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
	data, err := readJSON(dir, configFile, maxConfigBytes)
	if err != nil {
		return arch.Config{}, nil, fmt.Errorf("%s: %w", configFile, instead(dir, configFile, err))
	}
	cfg, err := arch.ParseJSON(data)
	if err != nil {
		return arch.Config{}, nil, fmt.Errorf("%s: %w", configFile, err)
	}
	for _, note := range arch.Notes(cfg) {
		notes = append(notes, configFile+": "+note)
	}
	data, err = readJSON(dir, generationFile, maxConfigBytes)
	var more []string
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return cfg, notes, nil
	case err == nil && blank(data):
		return cfg, append(notes, generationFile+" is empty, and is ignored"), nil
	case err == nil:
		more, err = cfg.Tokens.ReadGeneration(data, cfg.VocabSize)
	}
	if err != nil {
		return arch.Config{}, nil, fmt.Errorf("%s: %w", generationFile, err)
	}
	for _, note := range more {
		notes = append(notes, generationFile+": "+note)
	}
	return cfg, notes, nil
}

// readJSON reads a JSON file of a folder, of at most limit bytes.
func readJSON(dir, file string, limit int64) ([]byte, error) {
	data, err := durable.ReadSmall(filepath.Join(dir, file), limit)
	if err == nil {
		err = texts.Fetched(data)
	}
	return data, err
}

// instead returns the error about a file of a folder. If the folder has no such file, the error names a file or a folder that the user may
// have meant instead.
func instead(dir, file string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, other := range []struct{ wanted, pattern, remedy string }{
		{configFile, adapterConfigFile, "but an adapter: the model is the adapter's base, and this folder is for --adapter or lora.init"},
		{adapterConfigFile, configFile, "but a model, not an adapter"},
		{configFile, "*.gguf", "but a GGUF file: name the file"},
		{file, "*/" + file, "but folders in it have: name one of them"},
	} {
		found, _ := fs.Glob(os.DirFS(dir), other.pattern)
		if len(found) > 0 && other.wanted == file {
			return fmt.Errorf("the folder has none, %s (%s)", other.remedy, found[0])
		}
	}
	return err
}

func blank(data []byte) bool { return len(bytes.TrimSpace(data)) == 0 }

// openFolder opens the first weight file, or the first index, that is not empty.
func (o *opener) openFolder() (err error) {
	if o.config, o.notes, err = readConfig(o.path); err != nil {
		return err
	}
	for _, candidate := range []struct {
		name string
		open func(file string) error
	}{
		{safetensorsFile, o.addSafetensors},
		{safetensorsIndex, func(file string) error { return o.openIndex(file, ".safetensors", o.addSafetensors) }},
		{binFile, o.addBin},
		{binIndex, func(file string) error { return o.openIndex(file, ".bin", o.addBin) }},
	} {
		switch empty, err := o.empty(candidate.name); {
		case err == nil && !empty:
			if err := candidate.open(candidate.name); err != nil {
				return fmt.Errorf("%s: %w", candidate.name, err)
			}
			if err := o.dequantise(); err != nil {
				return fmt.Errorf("%s: %w", candidate.name, err)
			}
			if _, err := os.Stat(filepath.Join(o.path, adapterConfigFile)); err == nil {
				o.notes = append(o.notes, "the folder also has an adapter ("+adapterConfigFile+"), which transformers applies and mgrpo does not: "+
					"to apply it, name the folder as --adapter or lora.init, too")
			}
			return o.rename()
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	return fmt.Errorf("no weights found: the folder must contain %s, %s, %s or %s%s", safetensorsFile, safetensorsIndex, binFile, binIndex, inBrackets(o.notes))
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
func (o *opener) empty(file string) (bool, error) {
	info, err := os.Stat(filepath.Join(o.path, file))
	if err != nil || !info.Mode().IsRegular() || info.Size() > 0 {
		return false, err
	}
	o.notes = append(o.notes, file+" is empty, and is ignored")
	return true, nil
}

func (o *opener) has(name string) bool {
	_, plain := o.tensors[name]
	_, packed := o.packed[name]
	_, beside := o.others[name]
	return plain || packed || beside
}

// add registers a tensor of the given file in one of the maps of o, under its Hugging Face name. It refuses a name that any of the
// maps has.
func add(o *opener, tensors map[string]tensor, file, name string, t tensor) error {
	if o.has(name) {
		return fmt.Errorf("tensor %s occurs twice; the second is in %s", name, file)
	}
	tensors[name] = t
	return nil
}

// scan maps a file, which stays mapped as long as the Source, and calls f with its bytes.
func (o *opener) scan(path string, f func(file []byte) error) error {
	m, err := mapFile(path)
	if err != nil {
		return err
	}
	o.maps = append(o.maps, m)
	return guardMapped(func() error { return f(m.data) })
}
