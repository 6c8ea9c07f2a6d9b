package gotchx

// void *atm_method_(void *module, char *name, void **values, int n); // gotch's Go package does not call this function of its C interface
// static void *call_step(void *module, void **values, int n) { return atm_method_(module, "step", values, n); }
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	lib "github.com/sugarme/gotch/libtch"
	"github.com/sugarme/gotch/ts"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

// Module is a TorchScript module with forward(tokens, positions, segments) -> hidden: int64 [T] each, and float32 [T, Hidden]. It may have
// step(tokens, positions, state) -> (hidden, state), too: int64 [k] each, and float32 [k, Hidden].
type Module struct {
	path       string
	module     *ts.CModule
	steps      bool // it has step
	parameters map[string]*torch.Tensor
}

// OpenModule loads a file of torch.jit.save onto the device of a scope, with its parameters. The file is a program that runs in this
// process, so open only files whose author you trust.
func OpenModule(s *torch.Scope, path string) (*Module, error) {
	module, err := ts.ModuleLoadOnDevice(path, toDevice(s.Device()))
	if err != nil {
		return nil, fmt.Errorf("gotchx: %s: no TorchScript module, as torch.jit.save writes it: %w", path, err)
	}
	m := &Module{path: path, module: module, parameters: map[string]*torch.Tensor{}}
	named, err := module.NamedParameters()
	if err != nil {
		m.Drop()
		return nil, fmt.Errorf("gotchx: %s: parameters: %w", path, err)
	}
	module.SetEval() // dropout would differ between sampling and training
	m.steps = hasStep(module)
	for _, n := range named {
		m.parameters[n.Name] = s.Keep(fromGotch(s, n.Tensor))
		n.Tensor.MustDrop()
	}
	return m, nil
}

// Parameters returns the module's own parameters by name, which live until Drop.
func (m *Module) Parameters() map[string]*torch.Tensor { return m.parameters }

// Forward runs the module. It returns an error if the module fails.
func (m *Module) Forward(s *torch.Scope, tokens, positions, segments *torch.Tensor) (*torch.Tensor, error) {
	var in []*ts.Tensor
	for _, t := range []*torch.Tensor{tokens, positions, segments} {
		in = append(in, toGotch(t))
	}
	defer func() {
		for _, t := range in {
			t.MustDrop()
		}
	}()
	out, err := m.module.ForwardTs(in)
	if err != nil {
		return nil, fmt.Errorf("gotchx: %s: forward(tokens, positions, segments) of int64 %v: %w", m.path, tokens.Shape(), err)
	}
	defer out.MustDrop()
	return fromGotch(s, out), nil
}

// hasStep reports whether the module has a method step. It calls step without arguments: a method that exists fails with a different
// error than one that does not.
func hasStep(module *ts.CModule) bool {
	if out := C.call_step(unsafe.Pointer(module.Cmodule), nil, 0); out != nil {
		lib.AtiFree(lib.Civalue(out))
	}
	err := ts.TorchErr()
	return err == nil || !strings.Contains(err.Error(), "Method 'step' is not defined")
}

// Steps reports whether the module has a method step.
func (m *Module) Steps() bool { return m.steps }

// Step runs the method step on the next tokens of a sequence and the state after the tokens before them. It returns an error if the method
// fails or does not return two tensors.
func (m *Module) Step(s *torch.Scope, tokens, positions, state *torch.Tensor) (hidden, next *torch.Tensor, err error) {
	fail := func(err error) (*torch.Tensor, *torch.Tensor, error) {
		return nil, nil, fmt.Errorf("gotchx: %s: step(tokens, positions, state) of int64 %v and a state %v %v: %w", m.path, tokens.Shape(),
			state.DType(), state.Shape(), err)
	}
	var in [3]unsafe.Pointer
	for i, t := range []*torch.Tensor{tokens, positions, state} {
		shared := toGotch(t)
		defer shared.MustDrop()
		value := lib.AtiTensor(lib.Ctensor(shared.Ctensor()))
		defer lib.AtiFree(value)
		in[i] = unsafe.Pointer(value)
	}
	out := lib.Civalue(C.call_step(unsafe.Pointer(m.module.Cmodule), &in[0], C.int(len(in))))
	if err := ts.TorchErr(); err != nil {
		return fail(err)
	}
	defer lib.AtiFree(out)
	parts, err := pair(out)
	if err != nil {
		return fail(err)
	}
	for _, t := range parts {
		defer t.MustDrop()
	}
	return fromGotch(s, parts[0]), fromGotch(s, parts[1]), nil
}

// pair returns the two tensors of a tuple, which the caller must drop. gotch's own conversion leaks the tuple.
func pair(tuple lib.Civalue) (parts [2]*ts.Tensor, err error) {
	const tensorTag, tupleTag = 1, 5
	var values [2]lib.Civalue
	isPair := lib.AtiTag(tuple) == tupleTag && lib.AtiTupleLength(tuple) == int32(len(values))
	if isPair {
		lib.AtiToTuple(tuple, &values[0], len(values))
		for _, v := range values {
			defer lib.AtiFree(v)
			isPair = isPair && lib.AtiTag(v) == tensorTag
		}
	}
	_ = ts.TorchErr() // clears the error of AtiTag for a value of a type without a tag
	if !isPair {
		return parts, errors.New("it did not return a tuple of two tensors, hidden states and state")
	}
	for i, v := range values {
		parts[i] = ts.FromCtensor(unsafe.Pointer(lib.AtiToTensor(v)))
	}
	return parts, ts.TorchErr()
}

// Drop frees the module and its parameters. Call it inside Do of its device.
func (m *Module) Drop() {
	for _, t := range m.parameters {
		t.Drop()
	}
	m.module.Drop()
}
