package model

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// Module is a TorchScript module that computes the forward pass of a model (arch.Module).
type Module interface {
	// Parameters returns the module's own parameters by name. They live until Drop.
	Parameters() map[string]*torch.Tensor
	// Forward returns hidden states, float32 [T, Hidden], of packed sequences: int64 [T] each, the tokens, their positions from 0 in
	// their sequence, and the number of that sequence, which increases from 0. A token sees its sequence up to itself.
	Forward(s *torch.Scope, tokens, positions, segments *torch.Tensor) (*torch.Tensor, error)
	// Drop frees the module. Call it inside Device.Do.
	Drop()
}

// ModuleOpener loads a file of torch.jit.save onto the device of a scope.
type ModuleOpener func(s *torch.Scope, path string) (Module, error)

var openModule ModuleOpener

// SetModuleOpener sets the function that opens TorchScript modules. Package withgotch calls it.
func SetModuleOpener(open ModuleOpener) { openModule = open }

// CheckModuleNamed returns an error if only one of config.json and the user names a module, which is a program. path is the user's, or "".
func CheckModuleNamed(c arch.Config, path string) error {
	switch named := path != ""; {
	case c.Module != nil && !named:
		return errors.New("config.json has model_type torchscript, whose forward pass is a program: name it in the configuration, as in model: " +
			"{torchscript: FOLDER/policy.pt}, if you trust its author")
	case c.Module == nil && named:
		return fmt.Errorf("config.json next to the module has model_type %s; it must have torchscript, and list the module's parameters", c.Family)
	}
	return nil
}

// bindModule opens the module of the file and makes its parameters the leaves: they then are views of Master.
func bindModule(m *Model, s *torch.Scope, path string) error {
	if openModule == nil {
		return errors.New("this program was built without gotch, which runs TorchScript modules: use bin/mgrpo, or import trainer/withgotch")
	}
	module, err := openModule(s, path)
	if err != nil {
		return err
	}
	m.module = module
	own := module.Parameters()
	if err := checkModule(m.Layout, own); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, l := range m.Layout.Leaves {
		leaf := own[l.Name]
		leaf.RequireGrad(false)
		torch.SetData(leaf, m.Master.Tensor.Narrow(0, l.Offset, l.Numel()).View(l.Shape...))
		m.leaves = append(m.leaves, leaf)
		if l.Name == m.Config.Module.Head {
			m.Decoder = Decoder{cfg: &m.Config, head: leaf}
		}
	}
	m.Generation = &m.Decoder
	return nil
}

// checkModule compares the module's parameters with those of config.json.
func checkModule(layout *arch.Layout, own map[string]*torch.Tensor) error {
	listed, at := map[string]bool{}, map[uintptr]string{}
	for _, l := range layout.Leaves {
		listed[l.Name] = true
		p, ok := own[l.Name]
		if !ok {
			return fmt.Errorf("the module has no parameter %s, which config.json lists", l.Name)
		}
		if p.DType() != torch.Float32 || !slices.Equal(p.Shape(), l.Shape) {
			return fmt.Errorf("parameter %s of the module is %v %v; config.json requires float32 %v", l.Name, p.DType(), p.Shape(), l.Shape)
		}
		if twin, shared := at[uintptr(p.Ptr())]; shared {
			return fmt.Errorf("parameters %s and %s of the module share their values: give the module one of them, and name it as head if it is the "+
				"output head", twin, l.Name)
		}
		at[uintptr(p.Ptr())] = l.Name
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if !listed[name] {
			return fmt.Errorf("the module has a parameter %s, which config.json does not list", name)
		}
	}
	return nil
}

// moduleHidden computes the hidden states of a packed batch with the module. A failure of the module panics with *torch.Error, as
// operations do.
func moduleHidden(m *Model, s *torch.Scope, in Packed) *torch.Tensor {
	fail := func(format string, args ...any) {
		panic(&torch.Error{Op: "torchscript", Message: fmt.Sprintf(format, args...)})
	}
	first := make([]int32, in.Cu.Numel())
	in.Cu.Int32s(first)
	rows := in.IDs.Numel()
	segments := make([]int64, rows)
	for segment := range len(first) - 1 {
		for row := first[segment]; row < first[segment+1]; row++ {
			segments[row] = int64(segment)
		}
	}
	hidden, err := m.module.Forward(s, in.IDs.To(torch.Int64), in.Pos.To(torch.Int64), s.FromInt64(segments, rows))
	if err != nil {
		fail("%v", err)
	}
	if want := []int64{rows, int64(m.Config.Hidden)}; hidden.DType() != torch.Float32 || !slices.Equal(hidden.Shape(), want) {
		fail("forward returned %v %v; want hidden states, float32 %v", hidden.DType(), hidden.Shape(), want)
	}
	return hidden
}
