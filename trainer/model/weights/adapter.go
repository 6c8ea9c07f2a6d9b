package weights

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/lora"
)

// Files of an adapter's folder, as PEFT names them.
const (
	adapterConfigFile = "adapter_config.json"
	adapterFile       = "adapter_model.safetensors"
	adapterBin        = "adapter_model.bin" // read if there is no adapterFile
)

// Adapter is a LoRA adapter that was read from a folder in PEFT's format.
type Adapter struct {
	Config lora.PEFT
	Layout *lora.Layout
	Values []float32 // [Layout.Numel]
}

// Fill fills dst with the values that begin at index from.
func (a *Adapter) Fill(from int64, dst []float32) error {
	copy(dst, a.Values[from:])
	return nil
}

// ReadAdapter reads the adapter in a folder, for a base model of the given architecture. The tensors must match the
// adapter's settings: a tensor that is missing, unexpected, of another shape or not finite is an error that names it.
func ReadAdapter(dir string, base arch.Config) (*Adapter, error) {
	a := &Adapter{}
	err := a.readConfig(dir)
	if err == nil {
		err = a.readValues(dir, base)
	}
	if err != nil {
		return nil, fmt.Errorf("weights: adapter %s: %w", dir, err)
	}
	return a, nil
}

func (a *Adapter) readConfig(dir string) error {
	data, err := readJSON(dir, adapterConfigFile, maxConfigBytes)
	if err == nil {
		a.Config, err = lora.ParsePEFT(data)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", adapterConfigFile, instead(dir, adapterConfigFile, err))
	}
	return nil
}

func (a *Adapter) readValues(dir string, base arch.Config) error {
	file := adapterFile
	tensors, err := OpenTensors(filepath.Join(dir, file))
	if errors.Is(err, fs.ErrNotExist) {
		file = adapterBin
		tensors, err = openBinTensors(filepath.Join(dir, file))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the folder contains neither %s nor %s", adapterFile, adapterBin)
	}
	if err != nil {
		return err
	}
	defer tensors.Close()
	dropVeLoRA(tensors)
	renameBody(tensors, base)
	if a.Layout, err = a.Config.Spec.Match(base, modulesOf(tensors.Names())); err != nil {
		return err
	}
	if err := a.check(tensors); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	a.Values = make([]float32, a.Layout.Numel)
	for _, t := range a.Layout.Tensors() {
		dst := a.Values[t.Offset:][:t.Numel()]
		if err := tensors.Read(t.Name, 0, t.Shape[0], dst); err != nil {
			return err
		}
		if err := checkFinite(0, dst); err != nil {
			return fmt.Errorf("%s: tensor %s: %w", file, t.Name, err)
		}
	}
	return nil
}

// modulesOf returns the modules to which the tensors of an adapter's file belong.
func modulesOf(names []string) (modules []string) {
	for _, name := range names {
		module := strings.TrimSuffix(strings.TrimSuffix(name, ".lora_A.weight"), ".lora_B.weight")
		modules = append(modules, strings.TrimPrefix(module, lora.FilePrefix))
	}
	slices.Sort(modules)
	return slices.Compact(modules)
}

// dropVeLoRA drops the projections of velora_config, on which only gradients depend.
func dropVeLoRA(tensors *Tensors) {
	maps.DeleteFunc(tensors.tensors, func(name string, _ tensor) bool { return strings.HasSuffix(name, ".lora_velora_embed") })
}

// renameBody gives the modules of a larger model's language model their current place in transformers' module tree. Adapters that were
// trained with releases before 4.52 have names such as language_model.model.layers.0.
func renameBody(tensors *Tensors, base arch.Config) {
	if base.Wrapper == "" {
		return
	}
	renamed := map[string]tensor{}
	for name, t := range tensors.tensors {
		module, inside := strings.CutPrefix(name, lora.FilePrefix)
		before, layer, found := strings.Cut(module, "layers.")
		if inside && found && (before == "model." || before == "language_model.model.") {
			name = lora.FilePrefix + base.Body() + "layers." + layer
		}
		if _, twice := renamed[name]; twice {
			return
		}
		renamed[name] = t
	}
	tensors.tensors = renamed
}

// check compares names and shapes with the layout's.
func (a *Adapter) check(tensors *Tensors) error {
	var faults []error
	want := map[string]bool{}
	for _, t := range a.Layout.Tensors() {
		want[t.Name] = true
		dtype, shape, ok := tensors.Info(t.Name)
		switch {
		case !ok:
			faults = append(faults, fmt.Errorf("tensor %s is missing", t.Name))
		case !slices.Equal(shape, t.Shape):
			faults = append(faults, fmt.Errorf("tensor %s has shape %v: the base model and %s require %v", t.Name, shape, adapterConfigFile, t.Shape))
		case encodings[DType(dtype)].blockLen != 1:
			faults = append(faults, fmt.Errorf("tensor %s is %s: must be F32, F16 or BF16", t.Name, dtype))
		}
	}
	for _, name := range tensors.Names() {
		if !want[name] {
			faults = append(faults, fmt.Errorf("unexpected tensor %s", name))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return oneLine(limitFaults(faults))
}

// PEFT is an adapter to write, in the files of PEFT.
type PEFT struct {
	Config lora.PEFT
	Layout *lora.Layout
	Base   arch.Config
	Read   func(from int64, dst []float32) error // fills dst with values of the layout's flat buffer
}

// Write writes adapter_config.json, adapter_model.safetensors (always in float32: it ignores dtype), and the files of
// extra.
func (p PEFT) Write(f *durable.Folder, _ DType, extra map[string][]byte) error {
	var out []OutTensor
	for _, t := range p.Layout.Tensors() {
		out = append(out, OutTensor{t.Name, string(F32), t.Shape, 4 * t.Numel(), func(w io.Writer) error {
			values := make([]float32, t.Numel())
			if err := p.Read(t.Offset, values); err != nil {
				return fmt.Errorf("tensor %s: %w", t.Name, err)
			}
			return WriteFloats(w, F32, values)
		}})
	}
	slices.SortFunc(out, byName)
	if err := f.Create(adapterFile, func(w io.Writer) error { return WriteSafetensors(w, out) }); err != nil {
		return err
	}
	if err := f.CreateExtra(extra, adapterConfigFile, adapterFile); err != nil {
		return err
	}
	return f.CreateBytes(adapterConfigFile, p.Config.JSON(p.Base))
}
