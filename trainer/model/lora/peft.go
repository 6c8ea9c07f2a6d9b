package lora

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// PEFT is the content of an adapter_config.json.
type PEFT struct {
	Spec     Spec
	Base     string  // base_model_name_or_path
	Revision string  // revision of Base on the Hub; "": the default
	Dropout  float64 // lora_dropout, which is used in training only
}

// ParsePEFT reads the text of an adapter_config.json. Absent keys have PEFT's defaults. It returns an error that names the
// key if a setting is not implemented.
func ParsePEFT(data []byte) (PEFT, error) {
	p := PEFT{Spec: Spec{R: 8, Alpha: 8}}
	r, err := strictjson.NewReader(data)
	if err != nil {
		return p, err
	}
	kind := ""
	var unsupported error // reported last: for another kind of adapter, which has other keys, the error must name the kind
	err = r.Object(func(key string) (err error) {
		switch key {
		case "rank_pattern":
			p.Spec.Ranks, err = patterns(r)
		case "alpha_pattern":
			p.Spec.Alphas, err = patterns(r)
		default:
			var v any
			if v, err = r.Value(); err == nil {
				if fault := p.set(key, v, &kind); fault != nil && unsupported == nil {
					unsupported = fmt.Errorf("%s %w", strictjson.Brief(key), fault)
				}
			}
		}
		if err != nil {
			return fmt.Errorf("%s %w", strictjson.Brief(key), err)
		}
		return nil
	})
	switch {
	case err != nil:
		return p, err
	case kind == "":
		return p, errors.New("peft_type is missing")
	case kind != "LORA":
		return p, fmt.Errorf("peft_type is %s: only LORA is supported", strictjson.Brief(kind))
	case unsupported != nil:
		return p, unsupported
	}
	if err := r.End(); err != nil {
		return p, err
	}
	if err := p.Spec.Validate(); err != nil && !errors.Is(err, errSyntax) {
		return p, err
	}
	return p, nil
}

// set reads the value of one key.
func (p *PEFT) set(key string, v any, kind *string) (err error) {
	s := &p.Spec
	switch key {
	case "peft_type":
		*kind, err = asType[string](v, "a string")
	case "r":
		var r float64
		r, err = number(v)
		if s.R = int(r); err == nil && float64(s.R) != r {
			err = fmt.Errorf("is %s: must be an integer", strictjson.Show(v))
		}
	case "lora_alpha":
		s.Alpha, err = number(v)
	case "lora_dropout":
		p.Dropout, err = number(v)
	case "use_rslora":
		s.RSLoRA, err = asType[bool](v, "true or false")
	case "target_modules":
		s.Targets, err = targets(v)
	case "exclude_modules":
		s.Exclude, err = targets(v)
	case "layers_to_transform":
		s.Layers, err = layers(v)
	case "layers_pattern":
		err = layerNames(v)
	case "base_model_name_or_path":
		if v != nil {
			p.Base, err = asType[string](v, "a string")
		}
	default:
		allowed, known := neutralKeys[key]
		if isOff(v) || known && (allowed == nil || slices.Contains(allowed, v)) {
			return nil
		}
		err = fmt.Errorf("is %s: this is not supported", strictjson.Show(v))
	}
	return err
}

// neutralKeys maps keys that do not change the result of an adapter to the values for which this is true; nil: all values. Any
// other key must be off: null, false, 0 or empty.
var neutralKeys = map[string][]any{
	"auto_mapping": nil, "inference_mode": nil, "peft_version": nil, "revision": nil, "megatron_core": nil,
	"runtime_config":    nil, // how an earlier process computed
	"qalora_group_size": nil, // only used with use_qalora
	"bias":              {"none"},
	"task_type":         {"CAUSAL_LM"},
	// Other values change the base weights: the adapters are then relative to the changed weights.
	"init_lora_weights": {true, "gaussian", "eva", "orthogonal", "mica"},
	// Settings of those initialisations. An initialisation that changes the base weights is refused by its name above.
	"eva_config": nil, "loftq_config": nil, "corda_config": nil, "lora_ga_config": nil,
	"velora_config":       nil, // changes gradients only
	"ensure_weight_tying": nil, // of adapters of embeddings and heads, which are refused
}

func isOff(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case bool:
		return !v
	case string:
		return v == ""
	case json.Number:
		f, err := v.Float64()
		return err == nil && f == 0
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

// asType returns v as a value of a type that an error describes as `wanted`.
func asType[T any](v any, wanted string) (T, error) {
	t, ok := v.(T)
	if !ok {
		return t, fmt.Errorf("is %s: must be %s", strictjson.Show(v), wanted)
	}
	return t, nil
}

func number(v any) (float64, error) {
	n, _ := v.(json.Number)
	f, err := n.Float64()
	if err != nil || f < 0 {
		return 0, fmt.Errorf("is %s: must be a number of at least 0", strictjson.Show(v))
	}
	return f, nil
}

// targets reads a list of names, or one regular expression.
func targets(v any) (t Targets, err error) {
	switch v := v.(type) {
	case nil:
		return t, nil
	case string:
		return Targets{Pattern: v}, nil
	case []any:
		if len(v) > maxPatterns {
			return t, fmt.Errorf("lists %d names: at most %d", len(v), maxPatterns)
		}
		for _, one := range v {
			name, err := asType[string](one, "a string")
			if err != nil {
				return t, err
			}
			t.Names = append(t.Names, name)
		}
		return t, nil
	}
	return t, fmt.Errorf("is %s: must be a list of names, or a regular expression", strictjson.Show(v))
}

// layers reads a number, or a list of them.
func layers(v any) (list []int, err error) {
	all, isList := v.([]any)
	if !isList && v != nil {
		all = []any{v}
	}
	for _, one := range all {
		n, err := number(one)
		if err != nil {
			return nil, err
		}
		list = append(list, int(n))
	}
	return list, nil
}

// layerNames accepts the name of the list of layers that every family has, alone or in a list.
func layerNames(v any) error {
	list, isList := v.([]any)
	if !isList {
		list = []any{v}
	}
	if isOff(v) || slices.Contains(list, any("layers")) {
		return nil
	}
	return fmt.Errorf("is %s: the name of a model's list of layers is \"layers\"", strictjson.Show(v))
}

// patterns reads an object of numbers and keeps their order.
func patterns(r strictjson.Reader) (list []Override, err error) {
	err = r.Object(func(pattern string) error {
		if len(list) == maxPatterns {
			return fmt.Errorf("has more than %d entries", maxPatterns)
		}
		v, err := r.Value()
		if err != nil {
			return err
		}
		value, err := number(v)
		list = append(list, Override{pattern, value})
		return err
	})
	return list, err
}

// JSON returns the text of an adapter_config.json. cfg is the architecture of the base model.
func (p PEFT) JSON(cfg arch.Config) []byte {
	s := p.Spec
	if cfg.Wrapper != "" {
		s = s.spelledOut(cfg)
	}
	list := func(t Targets) any {
		switch {
		case len(t.Names) > 0:
			return t.Names
		case t.allLinear():
			return strings.Split(moduleChoices(cfg), ", ")
		case t.Pattern != "":
			return t.Pattern
		}
		return nil
	}
	keys := map[string]any{
		"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": p.Base, "revision": nil, "inference_mode": true,
		"r": s.R, "lora_alpha": s.Alpha, "use_rslora": s.RSLoRA, "target_modules": list(s.Targets), "exclude_modules": list(s.Exclude),
		"rank_pattern": ordered(s.Ranks), "alpha_pattern": ordered(s.Alphas), "layers_to_transform": s.Layers,
		"lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": false, "init_lora_weights": true, "modules_to_save": nil, "use_dora": false,
	}
	if p.Revision != "" {
		keys["revision"] = p.Revision
	}
	data, _ := json.MarshalIndent(keys, "", "  ") // strings and finite numbers: cannot fail
	return append(data, '\n')
}

// ordered returns an object of numbers in their order, which a Go map would lose.
func ordered(list []Override) json.RawMessage {
	text := []byte{'{'}
	for i, o := range list {
		if i > 0 {
			text = append(text, ',')
		}
		key, _ := json.Marshal(o.Pattern)
		value, _ := json.Marshal(o.Value)
		text = append(append(append(text, key...), ':'), value...)
	}
	return append(text, '}')
}
