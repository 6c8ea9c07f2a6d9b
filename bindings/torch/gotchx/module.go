package gotchx

import (
	"fmt"

	"github.com/sugarme/gotch/ts"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

// Module is a TorchScript module with forward(tokens, positions, segments) -> hidden: int64 [T] each, and float32 [T, Hidden].
type Module struct {
	path       string
	module     *ts.CModule
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

// Drop frees the module and its parameters. Call it inside Do of its device.
func (m *Module) Drop() {
	for _, t := range m.parameters {
		t.Drop()
	}
	m.module.Drop()
}
