package config

import (
	"path/filepath"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/lora"
)

// validateQuantised refuses settings that are impossible for weights that stay quantised.
func (c *Config) validateQuantised(d *decoder, a *Agent, key string) {
	switch {
	case !a.Adapts() && (c.Learns(a) || c.ColdStarts(a)):
		d.failAt(key+".dtype", "quantised weights cannot be trained in full; set dtype: auto, train adapters (lora), or set train: false and no cold start")
	case a.Model.Endpoint == nil && !strings.EqualFold(filepath.Ext(string(a.Model.Path)), ".gguf"):
		d.failAt(key+".dtype", "only the model of a .gguf file can stay quantised; set dtype: auto")
	case a.Engine.Remote():
		d.failAt(key+".dtype", "a server takes whole weights, and quantised ones cannot be written; set dtype: auto")
	case a.Engine.DType != "auto":
		d.failAt(key+".engine.dtype", "the weights stay quantised for sampling, too; remove this key")
	}
}

// validateModule refuses settings that need the layers of a model, which a module does not show.
func (a *Agent) validateModule(d *decoder, key string) {
	for _, own := range []struct {
		key   string
		given bool
		why   string
	}{
		{"devices", len(a.Ranks()) > 1, "is computed on one device"},
		{"dtype", a.DType != "auto" && a.DType != "fp32", "has float32 parameters"},
		{"engine.dtype", a.Engine.DType != "auto", "has float32 parameters"},
		{"engine.cache_tokens", a.Engine.CacheTokens > 0, "has no key-value cache"},
		{"engine.checkpoint_activations", a.Engine.CheckpointActivations, "is computed as a whole"},
		{"engine.kind", a.Engine.Remote(), "vLLM and SGLang cannot run"},
		{"lora", a.Adapts(), "has layers that mgrpo does not know, so it cannot adapt them"},
	} {
		if own.given {
			d.failAt(key+"."+own.key, "the model of %s is a TorchScript module, which %s; remove this key", a.Name, own.why)
		}
	}
}

func (c *Config) validateHosted(d *decoder, a *Agent) {
	key, e := "agents."+a.Name, a.Model.Endpoint
	if !webAddress(e.URL) || hasUser(e.URL) {
		d.failAt(key+".model.url", "must start with http:// or https:// and contain no user; put the key into the environment variable that key_env names")
	}
	if e.Name == "" {
		d.failAt(key+".model.name", "missing; the API needs the name of a model")
	}
	if e.KeyEnv != "" && !validEnv(e.KeyEnv) {
		d.failAt(key+".model.key_env", "must be the name of an environment variable, not the key itself")
	}
	for _, own := range []struct {
		key   string
		given bool
	}{{"device", a.Device != "cpu" && len(a.Devices) == 0}, {"devices", len(a.Devices) > 0}, {"machines", a.Machines.Count > 1}, {"dtype", a.DType != "auto"}, {"reference", a.Reference != ""}, {"engine.kind", a.Engine.Remote()}, {"lora", a.Adapts()}} {
		if own.given {
			d.failAt(key+"."+own.key, "the model of %s is hosted, so this key does not apply; remove it", a.Name)
		}
	}
	if c.Task.Kind == "research" {
		d.failAt(key+".model", "the task research has its own dialect, which a hosted model cannot use; use jsonl or gsm8k")
	}
}

func (l LoRA) validate(d *decoder, key string) {
	given := l.Alpha != 0 || len(l.Targets) > 0 || l.RSLoRA
	switch {
	case l.Folder() != "" && (given || l.R > 0):
		d.failAt(key+".init", "names an adapter, which has its own r, alpha, targets and rslora; remove those keys")
	case l.Folder() == "" && l.R == 0 && (given || l.Init == "gaussian"):
		d.failAt(key+".r", "missing: the rank of the adapters, such as 16")
	case l.R > 0:
		if err := lora.New(l.R, l.Alpha, l.RSLoRA, l.Targets).Validate(); err != nil {
			d.failAt(key+".targets", "%v", err)
		}
	}
}

func (s *Shape) validate(d *decoder, key string) {
	switch {
	case s.HeadDim == 0:
		d.failAt(key+".head_dim", "missing; width %d is not a multiple of heads, %d", s.Width, s.Heads)
	case s.HeadDim%2 != 0:
		d.failAt(key+".head_dim", "must be even for the rotary embedding; it is %d", s.HeadDim)
	}
	if s.Heads%s.KVHeads != 0 {
		d.failAt(key+".kv_heads", "must divide heads, %d; found %d", s.Heads, s.KVHeads)
	}
	for name, value := range map[string]int{"experts": s.Experts, "experts_per_token": s.PerToken, "expert_ffn": s.ExpertFFN} {
		if mixture := arch.HasExperts(s.Family); mixture && value < 1 {
			d.failAt(key+"."+name, "missing; family %s is a mixture of experts", s.Family)
		} else if !mixture && value != 0 {
			d.failAt(key+"."+name, "family %s has no experts", s.Family)
		}
	}
	if s.PerToken > s.Experts {
		d.failAt(key+".experts_per_token", "must be at most experts, %d; found %d", s.Experts, s.PerToken)
	}
	if s.Tokenizer == "" {
		d.failAt(key+".tokenizer", "must be task or a folder with tokenizer.json")
	}
}
