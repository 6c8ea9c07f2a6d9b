package config

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var deviceForm = regexp.MustCompile(`^(cpu|cuda(:[0-9]{1,4})?)$`)

func validateAgent(c *Config, d *decoder, a *Agent) {
	key := "agents." + a.Name
	d.refuseIf(a.Name == "agreed", key, "a checkpoint has a file of this name where the agent's folder would be; choose another name")
	a.validateDevices(d, key)
	validateMachines(c, d, a, key+".machines")
	d.refuseIf(a.DType == "bf16" && a.Device == "cpu", key+".dtype", "bf16 is for GPUs; on the CPU an agent is fp32")
	if a.Quantised() {
		validateQuantised(c, d, a, key)
	}
	a.Engine.validate(d, key+".engine")
	for i, u := range a.Engine.URL {
		at := slices.IndexFunc(c.Agents, func(o Agent) bool { return o.Name == a.Name || slices.Contains(o.Engine.URL, u) })
		if other := c.Agents[at].Name; other != a.Name {
			d.failAt(fmt.Sprintf("%s.engine.url[%d]", key, i), "is also the address of %s; a server holds the weights of one agent", other)
		}
	}
	if n := a.ContextTokens(math.MaxInt); a.Engine.CacheTokens > 0 && a.Engine.CacheTokens < n {
		d.failAt(key+".engine.cache_tokens", "%d tokens are less than one conversation may have, %d (limits.max_tokens)",
			a.Engine.CacheTokens, n)
	}
	if n := a.Engine.Conversations; n > 0 && n < c.Slots(a) {
		d.failAt(key+".engine.conversations", "%d are fewer than can sample at once, %d (engine.slots)", n, c.Slots(a))
	}
	d.refuseIf(a.Engine.DType == "bf16" && a.Device != "cpu", key+".engine.dtype", "bf16 with fp32 training is only for the CPU; on a GPU set dtype: bf16")
	d.refuseIf(a.Engine.CacheDType == "bf16" && a.Device != "cpu", key+".engine.cache_dtype",
		"on a GPU keys and values have the type of the model; remove this key, or set dtype: bf16")
	a.LoRA.validate(d, key+".lora")
	d.refuseIf(a.Prompt != "" && a.PromptText != "", key+".prompt_text", "given in addition to prompt; keep one")
	d.refuseIf(a.PromptSingle != "" && !a.IsMain(), key+".prompt_single", "given for a sub-agent, which does not take part in the arm single")
	a.validateTemplate(d, key+".template")
	d.refuseIf(a.Limits.MaxNewTokens > a.Limits.MaxTokens, key+".limits.max_new_tokens", "must be at most max_tokens, %d", a.Limits.MaxTokens)
	validateFold(c, d, a)
	validateDelegates(c, d, a)
	validateTools(c, d, a)
	d.refuseIf(c.GRPO.Reference == "cold_start" && c.HasKL(a) && a.Reference == "" && !c.ColdStarts(a), "grpo.reference",
		"is cold_start, but %s has no cold start: set auto, or %s.reference", a.Name, key)
	a.Optimizer.validate(d, key+".optimizer")
	if a.ColdStart.Steps > 0 {
		a.ColdStart.Optimizer.validate(d, key+".cold_start.optimizer")
	}
	if a.Model.Shape != nil {
		a.Model.Shape.validate(d, key+".model")
	}
	if a.Model.Module != nil {
		a.validateModule(d)
	}
	if a.Model.Endpoint != nil {
		validateHosted(c, d, a)
	}
}

// Bounds on the number of an agent's processes, on one machine and on all machines.
const (
	maxRanks    = 64
	maxAllRanks = 1024
)

// validateMachines refuses several machines that cannot find or recognise each other.
func validateMachines(c *Config, d *decoder, a *Agent, key string) {
	m, ranks := a.Machines, len(a.Ranks())
	if ranks > 1 && !a.Train && !c.ColdStarts(a) && a.Engine.Remote() {
		d.failAt("agents."+a.Name+".devices", "several devices share the work of training, but %s is not trained and samples on servers; "+
			"give one device", a.Name)
	}
	d.secretEnv(key+".key_env", m.KeyEnv, "key")
	d.refuseIf(m.KeyEnv != "" && m.KeyFile != "", key+".key_file", "given in addition to key_env; keep one")
	if _, given := d.at[key+".count"]; !given && m.Address != "" {
		d.failAt(key+".count", "missing; address is given, so give the number of machines, including the worker's")
	}
	if m.Count <= 1 {
		return
	}
	d.refuseIf(ranks > maxAllRanks, key+".count", "%d machines with %d devices each are more than %d devices", m.Count, len(a.OnMachine()), maxAllRanks)
	d.refuseIf(m.KeyEnv == "" && m.KeyFile == "", key+".key_env",
		"missing; %d machines need a key to recognise each other: name a variable, or give key_file", m.Count)
	host, port, err := net.SplitHostPort(m.Address)
	number, bad := strconv.ParseUint(port, 10, 16)
	ip := net.ParseIP(host)
	switch {
	case m.Address == "":
		d.failAt(key+".address", "missing; give HOST:PORT of the first machine, where the other machines find the worker")
	case err != nil || bad != nil || number == 0:
		d.failAt(key+".address", "%q is not possible; use HOST:PORT, such as 10.0.0.5:9470", clip(m.Address))
	case host == "" || ip != nil && ip.IsUnspecified():
		d.failAt(key+".address", "%q does not name a machine; use the HOST:PORT at which the others reach the first", clip(m.Address))
	}
	for _, other := range c.Agents {
		if other.Name == a.Name {
			return
		}
		d.refuseIf(other.Machines.Count > 1 && other.Machines.Address == m.Address, key+".address",
			"is also the address of %s; each agent's worker needs its own address", other.Name)
	}
}

// validateShard refuses divided weights if the agent needs whole weights.
func (a *Agent) validateShard(d *decoder, key string) {
	switch {
	case a.Shard != "full":
	case len(a.Ranks()) == 1:
		d.failAt(key, "full divides the weights among devices, but %s has one; name several under devices, or remove this key", a.Name)
	case a.Adapts():
		d.failAt(key, "full divides trained weights, but %s trains adapters; remove this key", a.Name)
	case !a.Engine.Remote():
		d.failAt(key, "with full no device holds all weights, but %s is sampled on its devices; sample on servers (engine.kind), or remove this key", a.Name)
	case !a.Engine.CheckpointActivations:
		d.failAt(key, "full gathers one layer at a time, which needs passes that run layer by layer; set engine.checkpoint_activations: true")
	}
}

// validateDevices refuses invalid devices, and lists of devices on which an agent's processes cannot run.
func (a *Agent) validateDevices(d *decoder, key string) {
	const wrong = "%q is not possible; valid are cpu, cuda, cuda:N"
	d.refuseIf(a.OptimizerState == "host" && a.Ranks()[0] == "cpu", key+".optimizer_state",
		"an agent on the CPU keeps all optimizer state in the host's memory; remove this key")
	a.validateShard(d, key+".shard")
	ranks := a.Devices
	if len(ranks) == 0 {
		if strings.ContainsAny(a.Device, ", ") {
			d.failAt(key+".device", "must be one device; give several as a list under devices, such as [cuda:0, cuda:1]")
		} else if !deviceForm.MatchString(a.Device) {
			d.failAt(key+".device", wrong, clip(a.Device))
		}
		return
	}
	d.refuseIf(a.Device != ranks[0], key+".devices", "given in addition to device, which is %s; keep one", clip(a.Device))
	d.refuseIf(len(ranks) > maxRanks, key+".devices", "%d devices are more than the %d that one machine can have", len(ranks), maxRanks)
	for i, device := range ranks {
		item := fmt.Sprintf("%s.devices[%d]", key, i)
		switch {
		case !deviceForm.MatchString(device):
			d.failAt(item, wrong, clip(device))
		case (device == "cpu") != (ranks[0] == "cpu"):
			d.failAt(item, "is %s, but the first device is %s; the devices of an agent must all be CPUs or all GPUs", device, clip(ranks[0]))
		}
	}
}

func (e *Engine) validate(d *decoder, key string) {
	if !e.Remote() {
		return
	}
	d.refuseIf(len(e.URL) == 0, key+".url", "missing; an engine of kind %s needs the address of a server", e.Kind)
	for i, u := range e.URL {
		if item := fmt.Sprintf("%s.url[%d]", key, i); !webAddress(u) {
			d.failAt(item, "must start with http:// or https://")
		} else if hasUser(u) {
			d.failAt(item, "it contains a user; put the key into the environment variable that key_env names")
		} else if slices.Contains(e.URL[:i], u) {
			d.failAt(item, "is given twice")
		}
	}
	d.refuseIf(e.Weights.Path == "", key+".weights.path", "missing; an engine of kind %s needs a folder to read weights from", e.Kind)
	d.secretEnv(key+".key_env", e.KeyEnv, "key")
}

// validateTemplate refuses variables that a conversation sets itself, and variables for the template of a hosted model.
func (a *Agent) validateTemplate(d *decoder, key string) {
	d.refuseIf(a.Template != "" && a.Model.Endpoint != nil, key, "given for a hosted model, but its server applies its own chat template")
	var given map[string]any
	if a.Template == "" || json.Unmarshal([]byte(a.Template), &given) != nil {
		return
	}
	for _, own := range []string{"messages", "tools", "documents", "add_generation_prompt"} {
		if _, ok := given[own]; ok {
			d.failAt(key, "%s cannot be set: it is made from the conversation", own)
		}
	}
}
