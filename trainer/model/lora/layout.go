package lora

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// Layout places the adapters of a model in one flat buffer. For each linear map of the forward pass it holds the A of the
// map's modules, one after the other, and then their B.
type Layout struct {
	Maps  []Map
	Numel int64
}

// Map is the adapters of one linear map of the forward pass, which is a leaf of arch.Layout: for instance the map for q, k
// and v.
type Map struct {
	Leaf    string // arch.Leaf.Name
	Offset  int64  // in elements, into the flat buffer
	Numel   int64
	Modules []Module // in the order of their rows
}

// Module is a module of the checkpoint that has an adapter.
type Module struct {
	Name    string // such as model.layers.0.self_attn.q_proj
	Row     int64  // first row of the module in the map's result
	In, Out int64
	R       int
	Scale   float64
	A, B    int64 // in elements, into the flat buffer: A [R, In] and B [Out, R]
}

// Tensor is one A or B.
type Tensor struct {
	Name   string // in adapter_model.safetensors
	Shape  []int64
	Offset int64 // in elements, into the flat buffer
}

// Numel returns the number of elements.
func (t Tensor) Numel() int64 { return t.Shape[0] * t.Shape[1] }

// FilePrefix is the beginning of each name in adapter_model.safetensors; the module's name follows.
const FilePrefix = "base_model.model."

// Tensors lists every A and B, in the order of the flat buffer's maps and modules.
func (l *Layout) Tensors() []Tensor {
	var all []Tensor
	for _, m := range l.Modules() {
		all = append(all, Tensor{FilePrefix + m.Name + ".lora_A.weight", []int64{int64(m.R), m.In}, m.A},
			Tensor{FilePrefix + m.Name + ".lora_B.weight", []int64{m.Out, int64(m.R)}, m.B})
	}
	return all
}

// Modules lists the adapted modules.
func (l *Layout) Modules() (all []Module) {
	for _, m := range l.Maps {
		all = append(all, m.Modules...)
	}
	return all
}

// Layout finds the modules of a model that have an adapter. It fails if a target names no module, or a module that cannot
// have an adapter.
func (s Spec) Layout(cfg arch.Config) (*Layout, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	modules := linears(cfg)
	if s.Targets.allLinear() && slices.ContainsFunc(modules, func(name string) bool { return strings.Contains(name, ".experts.") }) {
		return nil, fmt.Errorf("targets: %s is not supported for a mixture of experts: name attention's projections, such as q_proj and v_proj", AllLinear)
	}
	for _, target := range s.Targets.Names {
		matches, err := Targets{Names: []string{target}}.matcher()
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(modules, matches) {
			return nil, fmt.Errorf("targets: %s is not a module of the base model, whose linear modules are %s", strictjson.Brief(target), moduleChoices(cfg))
		}
	}
	l, err := s.place(cfg)
	if err == nil && len(l.Maps) == 0 {
		err = fmt.Errorf("targets: %s names no module of the base model, whose linear modules are %s", s.Targets, moduleChoices(cfg))
	}
	return l, err
}

// spelledOut returns the spec with the whole name of every module. If the language model is a part of a larger model, other
// parts may have modules whose names end in the same words, and PEFT would adapt those too.
func (s Spec) spelledOut(cfg arch.Config) Spec {
	l, err := s.place(cfg)
	if err != nil {
		return s
	}
	s.Targets, s.Exclude, s.Layers = Targets{}, Targets{}, nil
	for _, m := range l.Modules() {
		s.Targets.Names = append(s.Targets.Names, m.Name)
	}
	return s
}

// place lays out the modules that the targets name. There may be none.
func (s Spec) place(cfg arch.Config) (*Layout, error) {
	targeted, err := s.matcher()
	if err != nil {
		return nil, err
	}
	rank, err := overrides(s.Ranks, float64(s.R))
	if err != nil {
		return nil, fmt.Errorf("rank_pattern: %w", err)
	}
	alpha, err := overrides(s.Alphas, s.Alpha)
	if err != nil {
		return nil, fmt.Errorf("alpha_pattern: %w", err)
	}
	l := &Layout{}
	for _, leaf := range cfg.Layout().Leaves {
		m := Map{Leaf: leaf.Name, Offset: l.Numel}
		row := int64(0)
		for _, t := range leaf.Parts {
			name := module(t)
			if len(t.Shape) == 2 && targeted(name) {
				if err := adaptable(name); err != nil {
					return nil, fmt.Errorf("targets: %s: %w", name, err)
				}
				r := int(rank(name))
				m.Modules = append(m.Modules, Module{Name: name, Row: row, In: t.Shape[1], Out: t.Shape[0], R: r, Scale: s.scale(r, alpha(name))})
			}
			row += t.Shape[0]
		}
		if len(m.Modules) > 0 {
			l.add(m)
		}
	}
	return l, nil
}

// add assigns places to a map's modules.
func (l *Layout) add(m Map) {
	at := m.Offset
	for i := range m.Modules {
		m.Modules[i].A = at
		at += int64(m.Modules[i].R) * m.Modules[i].In
	}
	for i := range m.Modules {
		m.Modules[i].B = at
		at += int64(m.Modules[i].R) * m.Modules[i].Out
	}
	m.Numel = at - m.Offset
	l.Numel = at
	l.Maps = append(l.Maps, m)
}

// leaveExperts names every targeted module except experts and routers.
func (s *Spec) leaveExperts(cfg arch.Config) error {
	targeted, err := s.matcher()
	if err != nil {
		return err
	}
	s.Targets, s.Exclude, s.Layers = Targets{Names: slices.DeleteFunc(linears(cfg), func(name string) bool {
		return !targeted(name) || errors.Is(adaptable(name), errExperts)
	})}, Targets{}, nil
	return nil
}

// Match lays out the adapters of a file that has tensors for the given modules. These must be exactly the modules that the
// targets name. A target that names no module is not an error here: lists often name modules of several families.
func (s *Spec) Match(cfg arch.Config, modules []string) (*Layout, error) {
	known := map[string]bool{}
	for _, name := range linears(cfg) {
		known[name] = true
	}
	for _, name := range modules {
		if !known[name] {
			return nil, fmt.Errorf("%s is not a module of the base model, whose linear modules are %s", strictjson.Brief(name), moduleChoices(cfg))
		}
		if err := adaptable(name); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	l, err := s.place(cfg)
	if errors.Is(err, errExperts) { // transformers 5 has no modules for experts, so the targets name the other modules
		if err := s.leaveExperts(cfg); err != nil {
			return nil, err
		}
		l, err = s.place(cfg)
	}
	if errors.Is(err, errSyntax) { // the expression is in the file's own syntax, so the file's tensors decide
		s.Targets, s.Exclude, s.Layers = Targets{Names: modules}, Targets{}, nil
		l, err = s.place(cfg)
	}
	if err != nil {
		return nil, err
	}
	targeted := map[string]bool{}
	for _, m := range l.Modules() {
		targeted[m.Name] = true
	}
	for _, name := range modules {
		if !targeted[name] {
			return nil, fmt.Errorf("the file has tensors of %s, but target_modules does not name that module", name)
		}
	}
	if len(modules) == 0 {
		return nil, errors.New("the file has no tensors")
	}
	return l, nil
}
