package config

import (
	"path/filepath"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/lora"
)

// validateQuantised refuses settings that are impossible for weights that stay quantised.
func validateQuantised(c *Config, d *decoder, a *Agent, key string) {
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

// refusal is a key that does not apply to an agent's model.
type refusal struct {
	key   string // below the agent's own
	given bool
	why   string // continues "the model of AGENT is "
}

// refuse reports an error for each of the keys that is given.
func (a *Agent) refuse(d *decoder, keys ...refusal) {
	for _, r := range keys {
		d.refuseIf(r.given, "agents."+a.Name+"."+r.key, "the model of %s is %s; remove this key", a.Name, r.why)
	}
}

// validateModule refuses settings that need the layers of a model, which a module does not show.
func (a *Agent) validateModule(d *decoder) {
	const module = "a TorchScript module, which "
	a.refuse(d,
		refusal{"devices", len(a.Ranks()) > 1, module + "is computed on one device"},
		refusal{"dtype", a.DType != "auto" && a.DType != "fp32", module + "has float32 parameters"},
		refusal{"engine.dtype", a.Engine.DType != "auto", module + "has float32 parameters"},
		refusal{"engine.cache_dtype", a.Engine.CacheDType != "auto", module + "has no key-value cache"},
		refusal{"engine.cache_tokens", a.Engine.CacheTokens > 0, module + "has no key-value cache"},
		refusal{"engine.checkpoint_activations", a.Engine.CheckpointActivations, module + "is computed as a whole"},
		refusal{"engine.kind", a.Engine.Remote(), module + "vLLM and SGLang cannot run"},
		refusal{"lora", a.Adapts(), module + "has layers that mgrpo does not know, so it cannot adapt them"})
}

// validateHosted checks the address of a hosted model, and refuses settings of models on the team's own devices.
func validateHosted(c *Config, d *decoder, a *Agent) {
	key, e := "agents."+a.Name, a.Model.Endpoint
	d.refuseIf(!webAddress(e.URL) || hasUser(e.URL), key+".model.url",
		"must start with http:// or https:// and contain no user; put the key into the environment variable that key_env names")
	d.refuseIf(e.Name == "", key+".model.name", "missing; the API needs the name of a model")
	d.secretEnv(key+".model.key_env", e.KeyEnv, "key")
	const hosted = "hosted, so this key does not apply"
	a.refuse(d,
		refusal{"device", a.Device != "cpu" && len(a.Devices) == 0, hosted},
		refusal{"devices", len(a.Devices) > 0, hosted},
		refusal{"machines", a.Machines.Count > 1, hosted},
		refusal{"dtype", a.DType != "auto", hosted},
		refusal{"reference", a.Reference != "", hosted},
		refusal{"engine.kind", a.Engine.Remote(), hosted},
		refusal{"lora", a.Adapts(), hosted})
	d.refuseIf(c.Task.Kind == "research", key+".model", "the task research has its own dialect, which a hosted model cannot use; use jsonl or gsm8k")
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
	d.refuseIf(s.Heads%s.KVHeads != 0, key+".kv_heads", "must divide heads, %d; found %d", s.Heads, s.KVHeads)
	for name, value := range map[string]int{"experts": s.Experts, "experts_per_token": s.PerToken, "expert_ffn": s.ExpertFFN} {
		if mixture := arch.HasExperts(s.Family); mixture && value < 1 {
			d.failAt(key+"."+name, "missing; family %s is a mixture of experts", s.Family)
		} else if !mixture && value != 0 {
			d.failAt(key+"."+name, "family %s has no experts", s.Family)
		}
	}
	d.refuseIf(s.PerToken > s.Experts, key+".experts_per_token", "must be at most experts, %d; found %d", s.Experts, s.PerToken)
	d.refuseIf(s.Tokenizer == "", key+".tokenizer", "must be task or a folder with tokenizer.json")
}
