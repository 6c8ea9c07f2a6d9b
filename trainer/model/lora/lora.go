// Package lora defines low-rank adapters of linear maps (LoRA, Hu et al. 2021) in the way that PEFT defines them: the
// modules of a model that have an adapter, the adapters' ranks and scales, their places in a flat buffer, and
// adapter_config.json.
//
// A module y = W x becomes y = W x + Scale·B(A x), with A [R, in] and B [out, R]. W does not change.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package lora

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// AllLinear as Targets.Pattern selects every linear map of the layers, which excludes the head.
const AllLinear = "all-linear"

// Limits on settings, since adapter_config.json may come from an untrusted source.
const (
	maxRank     = 1 << 11 // the largest rank for which a kernel accepts three projections that are one product
	maxPatterns = 1 << 16 // also of names
)

// Spec defines the modules that have an adapter, and the adapters' ranks and scales.
type Spec struct {
	R       int     // rank
	Alpha   float64 // the scale is Alpha/R
	RSLoRA  bool    // the scale is Alpha/sqrt(R) (Kalajdzievski 2023)
	Targets Targets
	Exclude Targets // modules that have no adapter although Targets selects them; may be empty
	Layers  []int   // layers to which Targets is limited, except for whole names; empty: all layers

	// Ranks and Alphas replace R and Alpha for some modules. The first entry that matches a module is used.
	Ranks, Alphas []Override
}

// New returns the settings of new adapters. An alpha of 0 results in a scale of 1. targets lists names of modules, or one
// regular expression, or AllLinear. Empty targets stand for AllLinear.
func New(r int, alpha float64, rslora bool, targets []string) Spec {
	s := Spec{R: r, Alpha: alpha, RSLoRA: rslora}
	if alpha == 0 {
		s.Alpha = float64(r)
		if rslora {
			s.Alpha = math.Sqrt(s.Alpha)
		}
	}
	switch {
	case len(targets) == 0:
		s.Targets.Pattern = AllLinear
	case len(targets) == 1 && !plainName.MatchString(targets[0]):
		s.Targets.Pattern = targets[0] // an expression, or AllLinear: no module's name has a dash
	default:
		s.Targets.Names = targets
	}
	return s
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9_.]+$`)

// Targets selects modules. A module is selected if Names holds its name or an end of its name that begins after a dot. If
// Names is empty, a module is selected if the regular expression Pattern matches its whole name, or if Pattern is
// AllLinear.
type Targets struct {
	Names   []string
	Pattern string
}

// Override is a value for some modules: those whose name, or an end of it that begins after a dot, matches the regular
// expression Pattern.
type Override struct {
	Pattern string
	Value   float64
}

// String formats the targets for an error.
func (t Targets) String() string {
	if len(t.Names) > 0 {
		return strictjson.Brief(strings.Join(t.Names, ", "))
	}
	return strictjson.Brief(t.Pattern)
}

// Validate checks the numbers and expressions. It does not need a model.
func (s Spec) Validate() error {
	switch {
	case s.R < 1 || s.R > maxRank:
		return fmt.Errorf("r is %d: must be 1 to %d", s.R, maxRank)
	case !isPositive(s.Alpha):
		return fmt.Errorf("alpha is %v: must be positive and finite", s.Alpha)
	case len(s.Targets.Names) == 0 && s.Targets.Pattern == "":
		return fmt.Errorf("targets are missing: name modules such as q_proj, or %s", AllLinear)
	}
	for _, o := range s.Ranks {
		if o.Value < 1 || o.Value > maxRank || o.Value != math.Trunc(o.Value) {
			return fmt.Errorf("rank_pattern: %s is %v: must be an integer from 1 to %d", strictjson.Brief(o.Pattern), o.Value, maxRank)
		}
	}
	for _, o := range s.Alphas {
		if !isPositive(o.Value) {
			return fmt.Errorf("alpha_pattern: %s is %v: must be positive and finite", strictjson.Brief(o.Pattern), o.Value)
		}
	}
	_, err := s.matcher()
	return err
}

func isPositive(v float64) bool { return v > 0 && !math.IsInf(v, 0) }

// scale returns the scale of a module's adapter.
func (s Spec) scale(r int, alpha float64) float64 {
	if s.RSLoRA {
		return alpha / math.Sqrt(float64(r))
	}
	return alpha / float64(r)
}

// matcher returns a function that reports whether a module has an adapter.
func (s Spec) matcher() (func(name string) bool, error) {
	included, err := s.Targets.matcher()
	if err != nil {
		return nil, fmt.Errorf("targets: %w", err)
	}
	excluded, err := s.Exclude.matcher()
	if err != nil {
		return nil, fmt.Errorf("exclude_modules: %w", err)
	}
	return func(name string) bool {
		return included(name) && !excluded(name) && (len(s.Layers) == 0 || slices.Contains(s.Targets.Names, name) || slices.Contains(s.Layers, layer(name)))
	}, nil
}

// layer returns the number of a module's layer, or -1 if it is not part of a layer.
func layer(name string) int {
	n := -1
	if _, rest, ok := strings.Cut("."+name, ".layers."); ok {
		number, _, _ := strings.Cut(rest, ".")
		if v, err := strconv.Atoi(number); err == nil {
			n = v
		}
	}
	return n
}

// matcher returns a function that reports whether the targets select a module.
func (t Targets) matcher() (func(name string) bool, error) {
	switch {
	case len(t.Names) > 0:
		whole := map[string]bool{}
		for _, n := range t.Names {
			whole[n] = true
		}
		return func(name string) bool {
			for more := true; more; _, name, more = strings.Cut(name, ".") {
				if whole[name] {
					return true
				}
			}
			return false
		}, nil
	case t.Pattern == "":
		return func(string) bool { return false }, nil
	case t.allLinear():
		return func(name string) bool { return name != head && !isEmbedding(name) }, nil
	}
	whole, err := expression(`(?:` + t.Pattern + `)`)
	if err != nil {
		return nil, err
	}
	return whole.MatchString, nil
}

func (t Targets) allLinear() bool { return strings.EqualFold(t.Pattern, AllLinear) }

// errSyntax is returned for a regular expression that Python accepts and RE2, which this program uses, does not, such as
// (?!...).
var errSyntax = errors.New("this program's regular expressions (RE2) do not support a part of it, such as (?!...) or \\1: name the modules instead")

// expression compiles a regular expression that must match a whole text.
func expression(text string) (*regexp.Regexp, error) {
	compiled, err := regexp.Compile(`\A` + text + `\z`)
	var fault *syntax.Error
	if errors.As(err, &fault) {
		switch fault.Code {
		case syntax.ErrInvalidPerlOp, syntax.ErrInvalidEscape, syntax.ErrInvalidNamedCapture, syntax.ErrInvalidRepeatOp, syntax.ErrInvalidRepeatSize:
			return nil, fmt.Errorf("the regular expression %s: %w", strictjson.Brief(text), errSyntax)
		}
		return nil, fmt.Errorf("the regular expression %s: %s", strictjson.Brief(text), fault.Code)
	}
	return compiled, err
}

// overrides returns a function that returns a module's value.
func overrides(list []Override, otherwise float64) (func(name string) float64, error) {
	compiled := make([]*regexp.Regexp, len(list))
	for i, o := range list {
		var err error
		if compiled[i], err = expression(`(?:.*\.)?(?:` + o.Pattern + `)`); err != nil {
			return nil, err
		}
	}
	return func(name string) float64 {
		for i, c := range compiled {
			if c.MatchString(name) {
				return list[i].Value
			}
		}
		return otherwise
	}, nil
}

// Names of modules outside layers.
const (
	head              = "lm_head"
	embedding         = "embed_tokens"
	embeddingOfInputs = "embed_tokens_per_layer" // see arch.ByLayer.Inputs
)

// isEmbedding reports whether a module is an embedding.
func isEmbedding(name string) bool {
	return strings.HasSuffix(name, "."+embedding) || strings.HasSuffix(name, "."+embeddingOfInputs)
}

// adaptable returns an error with the reason if a linear module of a checkpoint cannot have an adapter.
func adaptable(name string) error {
	switch {
	case name == head || isEmbedding(name):
		return errors.New("adapters of the embedding and the head are not supported")
	case strings.Contains(name, ".experts.") || strings.HasSuffix(name, ".gate") || strings.HasSuffix(name, ".router") ||
		strings.HasSuffix(name, ".router.proj"):
		return errExperts
	}
	return nil
}

var errExperts = errors.New("adapters of experts and routers are not supported: of a mixture of experts, name attention's projections")

// linears returns the names of all linear modules of a model.
func linears(cfg arch.Config) (names []string) {
	for _, t := range cfg.Layout().Tensors() {
		if len(t.Shape) == 2 {
			names = append(names, module(t))
		}
	}
	return names
}

// moduleChoices lists, for messages, the last parts of the names of modules that can have an adapter.
func moduleChoices(cfg arch.Config) string {
	var ends []string
	for _, name := range linears(cfg) {
		if end := name[strings.LastIndex(name, ".")+1:]; adaptable(name) == nil && !slices.Contains(ends, end) {
			ends = append(ends, end)
		}
	}
	return strings.Join(ends, ", ")
}

// module returns the name of the module to which a tensor of a checkpoint belongs.
func module(t arch.Tensor) string { return t.Name[:strings.LastIndex(t.Name, ".")] }
