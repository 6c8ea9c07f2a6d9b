package model

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

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
	// Steps reports whether the module has a method step.
	Steps() bool
	// Step returns the hidden states, float32 [k, Hidden], of the next k tokens of one sequence, and the state after them. state is the
	// state after the tokens before them; it is float32 [0] if there are none.
	Step(s *torch.Scope, tokens, positions, state *torch.Tensor) (hidden, next *torch.Tensor, err error)
	// Drop frees the module. Call it inside Device.Do.
	Drop()
}

// boundModule is the module of a model.
type boundModule struct {
	Module
	path    string
	hidden  int64        // the model's hidden size
	changes atomic.Int64 // of the weights
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
	m.module = &boundModule{Module: module, path: path, hidden: int64(m.Config.Hidden)}
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
			m.Training = &Decoder{cfg: &m.Config, head: leaf}
		}
	}
	m.Generation = m.Training
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

// failModule panics with *torch.Error, as operations do.
func failModule(format string, args ...any) {
	panic(&torch.Error{Op: "torchscript", Message: fmt.Sprintf(format, args...)})
}

// check panics unless the hidden states that a method returned have the right type and shape.
func (m *boundModule) check(method string, hidden *torch.Tensor, rows int64) {
	if want := []int64{rows, m.hidden}; hidden.DType() != torch.Float32 || !slices.Equal(hidden.Shape(), want) {
		failModule("%s: %s returned %v %v; want hidden states, float32 %v", m.path, method, hidden.DType(), hidden.Shape(), want)
	}
}

// moduleHidden computes the hidden states of a packed batch with the module. It panics if the module fails.
func moduleHidden(m *Model, s *torch.Scope, in Packed) *torch.Tensor {
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
		failModule("%v", err)
	}
	m.module.check("forward", hidden, rows)
	return hidden
}

// State is the state of a module's step after the first tokens of a sequence. The zero value is the state of no tokens.
type State struct {
	tensor  *torch.Tensor // kept
	tokens  int
	changes int64 // of the weights, when these tokens were computed
}

// Drop frees the state. Call it inside Device.Do.
func (st *State) Drop() {
	st.tensor.Drop()
	*st = State{}
}

// HasStep reports whether the model is a module with a method step.
func HasStep(m *Model) bool { return m.module != nil && m.module.Steps() }

// Advance computes the tokens of a sequence that the state has not seen, with the module's step. It returns the hidden state [1, Hidden]
// of the last token. If the weights have changed, it drops the state and computes all tokens. It panics if the module fails.
func (st *State) Advance(s *torch.Scope, m *Model, sequence []int32) *torch.Tensor {
	if changes := m.module.changes.Load(); st.changes != changes {
		st.Drop()
		st.changes = changes
	}
	rows := int64(len(sequence) - st.tokens)
	tokens, positions := make([]int64, rows), make([]int64, rows)
	for i := range tokens {
		positions[i] = int64(st.tokens + i)
		tokens[i] = int64(sequence[positions[i]])
	}
	before := st.tensor
	if before == nil {
		before = s.Empty(torch.Float32, 0)
	}
	hidden, after, err := m.module.Step(s, s.FromInt64(tokens, rows), s.FromInt64(positions, rows), before)
	if err != nil {
		failModule("%v", err)
	}
	m.module.check("step", hidden, rows)
	if hidden.Scale(0).Sum().Item() != 0 { // NaN
		failModule("%s: step returned hidden states, float32 %v, that are not finite", m.module.path, hidden.Shape())
	}
	st.tensor.Drop()
	st.tensor, st.tokens = s.Keep(after), len(sequence)
	return hidden.Narrow(0, rows-1, 1)
}

// WeightsChanged records that a model's weights have changed: states of old weights are not used again.
func WeightsChanged(m *Model) {
	if m.module != nil {
		m.module.changes.Add(1)
	}
}
