package arch

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

// family is the definition of a family. Each is registered by its name.
type family struct {
	name         string // model_type in config.json, and `family` of a configured shape
	architecture string // name of the class in architectures of config.json
	defaults     Config // defaults of transformers for absent keys; KVHeads 0 means Heads, HeadDim 0 means Hidden/Heads

	has           familyKeys // keys that only some families have
	partialRotary float64    // partial_rotary_factor if the key is absent; 0: the family does not have this key
	rope          string     // rope_parameters if the key is absent, as JSON; "": none

	Features
	anyGELU bool // with GELU: the key may also name its exact form, which stands for the tanh form

	read  func(k *keys, c *Config)      // reads or refuses the family's own keys; may be nil
	write func(c Config) map[string]any // own keys for a written config.json, so that readers do not use their defaults; may be nil

	layer     func(l *layer, c Config) // the tensors of one layer; nil for TorchScript, to which no other field applies
	finalNorm string                   // name of the norm after the layers; "": norm
	gguf      *gguf                    // nil: GGUF does not have this architecture
}

// familyKeys lists the keys, and the parts of a layer with keys of their own, that only some families have.
type familyKeys struct {
	attentionBias, mlpBias bool // attention_bias, mlp_bias
	useBias, qkvBias       bool // use_bias replaces both; qkv_bias replaces attention_bias, on q, k and v
	windows                bool // sliding_window
	noRope                 bool // layers without rotary positions
	queryScalar            bool // query_pre_attn_scalar
	byLayer                bool // see ByLayer; also final_logit_softcapping, and enable_moe_block: experts in addition to the MLPs
	longRope               bool // rope_scaling must be a RopeLong
	queryGrowth            bool // llama_4_scaling_beta
	alpha                  bool // alpha of rope_type dynamic, see RopeAlpha
	multipliers            bool // see Multipliers
	expertsAlone           bool // every layer has experts, of size intermediate_size
	shortConv              bool // see ShortConv
	gatedDelta             bool // see GatedDelta; in a mixture, every layer has experts, with normalised weights
}

var families = map[string]*family{}

func register(f *family) {
	f.defaults.Family, f.defaults.Rope.Theta = f.name, cmp.Or(f.defaults.Rope.Theta, 10000)
	families[f.name] = f
}

// Families lists the supported families by name, sorted. TorchScript, whose forward passes are programs of users, is not among them.
func Families() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(families)), func(name string) bool { return families[name].layer == nil })
}

// GGUFName returns the name of a family's architecture in GGUF files, or "" if such files are not supported.
func GGUFName(family string) string {
	f := families[family]
	if f == nil || f.gguf == nil {
		return ""
	}
	return f.ggufName()
}

// supported returns the end of an error message: "use llama, qwen2 or qwen3".
func supported(names []string) string {
	last := len(names) - 1
	return "use " + strings.Join(names[:last], ", ") + " or " + names[last]
}

func familyOf(name string) (*family, error) {
	if f, ok := families[name]; ok {
		return f, nil
	}
	kind := ""
	if strings.Contains(name, "moe") {
		kind = "a mixture of experts, which is "
	}
	return nil, fmt.Errorf("model_type %q is %snot supported: %s", strictjson.Brief(name), kind, supported(Families()))
}

// readFamily reads model_type and architectures, which must agree if both are present.
func readFamily(k *keys) (*family, error) {
	var name string
	k.text("model_type", &name)
	if k.err != nil {
		return nil, k.err
	}
	named, _ := k.values["architectures"].([]any)
	if name == "" && len(named) == 0 {
		return nil, errors.New("model_type is missing")
	}
	if name == "" {
		for _, f := range families {
			if len(named) == 1 && named[0] == f.architecture {
				return f, nil
			}
		}
		return nil, fmt.Errorf("architectures %s is not supported: %s", strictjson.Show(named), supported(architectures()))
	}
	f, err := familyOf(name)
	if err != nil {
		return nil, err
	}
	for _, a := range named {
		if a != f.architecture {
			return nil, fmt.Errorf("architectures names %s, but model_type %q needs %s", strictjson.Show(a), f.name, f.architecture)
		}
	}
	return f, nil
}

func architectures() (names []string) {
	for _, name := range Families() {
		names = append(names, families[name].architecture)
	}
	return names
}
