package arch

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

// TorchScript is the model_type of a model whose forward pass is a program that its user exported: a TorchScript module next to
// config.json, which lists the module's parameters.
const TorchScript = "torchscript"

// Module describes the parameters of such a module. Config then has no layers and heads.
type Module struct {
	Head       string // head: name of the parameter [VocabSize, Hidden] whose product with hidden states is the logits
	Parameters []Parameter
}

// Parameter is a parameter of a module.
type Parameter struct {
	Name  string
	Shape []int64
}

func init() { register(&family{name: TorchScript, architecture: "TorchScript"}) }

// Limits of a module's parameters.
const (
	maxModuleParameters = 100_000
	maxModuleName       = 512
	maxModuleDimensions = 8
	maxModuleElements   = 1 << 40 // of all parameters
)

// readModule reads the config.json of a module.
func readModule(k *keys, f *family) (Config, error) {
	c := Config{Family: f.name, Module: &Module{}}
	k.require("vocab_size", "hidden_size", "max_position_embeddings", "head", "parameters")
	k.read(c.settings())
	k.text("head", &c.Module.Head)
	for _, t := range c.Tokens.keys() {
		*t.ids = k.ids(t.key)
	}
	shapes, isObject := k.values["parameters"].(map[string]any)
	if !isObject || len(shapes) > maxModuleParameters {
		k.fail("parameters must be an object with the shapes of at most %d parameters", maxModuleParameters)
	}
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		p := Parameter{Name: name}
		sizes := &keys{values: shapes, prefix: k.prefix + "parameters: "}
		for _, n := range sizes.integers(name) {
			p.Shape = append(p.Shape, int64(n))
		}
		if sizes.err != nil {
			return Config{}, sizes.err
		}
		c.Module.Parameters = append(c.Module.Parameters, p)
	}
	return c, k.err
}

// validateModule checks the sizes of a module's parameters.
func validateModule(c Config) error {
	head, elements := false, 0.0
	for _, p := range c.Module.Parameters {
		n, err := p.validate()
		if err != nil {
			return err
		}
		if elements += n; elements > maxModuleElements {
			return fmt.Errorf("parameters have more than 2^40 values up to %s", strictjson.Brief(p.Name))
		}
		if p.Name == c.Module.Head {
			head = slices.Equal(p.Shape, []int64{int64(c.VocabSize), int64(c.Hidden)})
		}
	}
	if !head {
		return fmt.Errorf("head %q must name one of parameters whose shape is [vocab_size, hidden_size], [%d, %d]", strictjson.Brief(c.Module.Head),
			c.VocabSize, c.Hidden)
	}
	return c.Tokens.validate(c.VocabSize)
}

// validate returns the number of values.
func (p Parameter) validate() (elements float64, err error) {
	if p.Name == "" || len(p.Name) > maxModuleName {
		return 0, fmt.Errorf("parameters has a name of %d bytes: must be 1 to %d", len(p.Name), maxModuleName)
	}
	if len(p.Shape) == 0 || len(p.Shape) > maxModuleDimensions {
		return 0, fmt.Errorf("parameters: %s has %d dimensions: must be 1 to %d", strictjson.Brief(p.Name), len(p.Shape), maxModuleDimensions)
	}
	elements = 1
	for _, n := range p.Shape {
		elements *= float64(n)
		if n < 1 || n > math.MaxInt32 {
			return 0, fmt.Errorf("parameters: %s has shape %v: every size must be positive and below 2^31", strictjson.Brief(p.Name), p.Shape)
		}
	}
	return elements, nil
}

// layout places each parameter as a leaf of its own, in the order of their names.
func (p *Module) layout() *Layout {
	l := &Layout{}
	for _, q := range p.Parameters {
		kind := Matrix
		if len(q.Shape) == 1 {
			kind = Bias
		}
		l.add(q.Name, kind, Tensor{Name: q.Name, Shape: q.Shape})
	}
	return l
}

// keys returns the keys of config.json that only modules have.
func (p *Module) keys() map[string]any {
	shapes := map[string][]int64{}
	for _, q := range p.Parameters {
		shapes[q.Name] = q.Shape
	}
	return map[string]any{"head": p.Head, "parameters": shapes}
}
