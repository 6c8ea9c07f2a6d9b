package config

import (
	"fmt"
	"math"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/arch"
	"github.com/mgrpo/mgrpo/trainer/lora"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// builtinTools are the tools that need no entry under tools.
var builtinTools = []string{"calculator", "code"}

// validate checks the rules between several keys. It runs after all single values were found valid.
func (c *Config) validate(d *decoder) {
	c.validateRun(d)
	c.validateStore(d)
	c.Health.validate(d)
	c.validateGateway(d)
	c.validateTask(d)
	c.validateGRPO(d)
	c.Eval.validate(d)
	if c.ColdStart.Demonstrations == "parts" && c.Task.Kind != "jsonl" && c.Task.Kind != "go" {
		d.failAt("cold_start.demonstrations", "the queries of the task %s have no parts; use task.kind: jsonl, or demonstrations: task", c.Task.Kind)
	}
	if c.ColdStart.Demonstrations != "none" && !slices.ContainsFunc(c.Agents, func(a Agent) bool { return a.ColdStart.Steps > 0 }) {
		d.failAt("cold_start.steps", "missing; demonstrations are given, but no agent learns from them")
	}
	for i := range c.Tools {
		c.Tools[i].validate(d)
	}
	c.validateTeam(d)
	for i := range c.Agents {
		c.validateAgent(d, &c.Agents[i])
	}
}

func (c *Config) validateRun(d *decoder) {
	if _, err := time.Parse(time.DateOnly, c.Run.Date); c.Run.Date != "" && err != nil {
		d.failAt("run.date", "%q is not a date; want YYYY-MM-DD", clip(c.Run.Date))
	}
	if !validName(c.Run.Name) {
		d.failAt("run.name", "not a name; names start with a letter and have at most 64 letters, digits, dashes and underscores")
	}
}

func (c *Config) validateStore(d *decoder) {
	s := &c.Store
	if s.PasswordEnv != "" && s.PasswordFile != "" {
		d.failAt("store.password_file", "given besides store.password_env; keep one")
	}
	if s.PasswordEnv != "" && !validEnv(s.PasswordEnv) {
		d.failAt("store.password_env", "want the name of an environment variable, not the password")
	}
	if (s.TLS.Cert == "") != (s.TLS.Key == "") {
		d.failAt("store.tls", "cert and key go together")
	}
	if s.URL == "" {
		return
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		d.failAt("store.url", "want redis://HOST:PORT/DB, rediss:// or unix:///SOCKET") // the parser's error would contain the URL, which may contain a password
		return
	}
	if !slices.Contains([]string{"redis", "rediss", "unix"}, u.Scheme) {
		d.failAt("store.url", "want redis://, rediss:// or unix://, found %s://", clip(u.Scheme))
	}
	_, inURL := u.User.Password()
	if inURL || u.Query().Has("password") {
		d.failAt("store.url", "contains a password; put it into an environment variable and name the variable in store.password_env")
	}
	if u.User.Username() != "" && s.Username != "" && u.User.Username() != s.Username {
		d.failAt("store.username", "differs from the user in store.url; keep one")
	}
	if u.Scheme != "rediss" && s.TLS != (TLS{}) {
		d.failAt("store.tls", "needs a store.url that starts with rediss://")
	}
}

func (h *Health) validate(d *decoder) {
	if h.TokenEnv != "" && !validEnv(h.TokenEnv) {
		d.failAt("health.token_env", "want the name of an environment variable, not the token")
	}
	if h.Address == "" {
		if h.TokenEnv != "" {
			d.failAt("health.address", "missing; a token is for requests to an address")
		}
		return
	}
	if !d.listening("health.address", h.Address) && h.TokenEnv == "" {
		d.failAt("health.token_env", "missing; health.address %s is open to other machines, so requests need a token", clip(h.Address))
	}
}

func (c *Config) validateGateway(d *decoder) {
	g, p := &c.Gateway, &c.Task.Program
	if p.Elsewhere && len(p.Command) > 0 {
		d.failAt("task.program.elsewhere", "given besides task.program.command; keep one")
	}
	if p.Elsewhere && g.TokenEnv == "" {
		d.failAt("gateway.token_env", "missing; programs elsewhere need a token to ask for rollouts")
	}
	if len(p.Command) > 0 && p.Command[0] == "" {
		d.failAt("task.program.command", "its first word is empty; want a program")
	}
	if g.TokenEnv != "" && !validEnv(g.TokenEnv) {
		d.failAt("gateway.token_env", "want the name of an environment variable, not the token")
	}
	if (g.Cert == "") != (g.Key == "") {
		d.failAt("gateway.cert", "cert and key go together")
	}
	if u, err := url.Parse(g.Advertise); g.Advertise != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		d.failAt("gateway.advertise", "want http://HOST:PORT or https://HOST:PORT")
	}
	if g.Listen == "" {
		return
	}
	local := d.listening("gateway.listen", g.Listen)
	if host, _, err := net.SplitHostPort(g.Listen); err == nil && g.Advertise == "" {
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			d.failAt("gateway.advertise", "missing; gateway.listen %s names no host, so others cannot be told where this process is", clip(g.Listen))
		}
	}
	if !local && g.Cert == "" && g.AllowInsecure == "" {
		d.failAt("gateway.cert", "missing; gateway.listen %s is open to other machines: give cert and key, or set gateway.allow_insecure", clip(g.Listen))
	}
	if c.Health.Address != "" && c.Health.Address != g.Listen {
		d.failAt("health.address", "differs from gateway.listen; both are one port, so leave this one out")
	}
}

// listening checks an address to listen at, and says whether only this machine reaches it.
func (d *decoder) listening(key, address string) (local bool) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		d.failAt(key, "want HOST:PORT, such as 127.0.0.1:9464")
		return true
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		d.failAt(key, "%q is not a port; want a number from 0 to 65535", clip(port))
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (e *Eval) validate(d *decoder) {
	if e.Temperature > 0 && e.Temperature < 1e-6 {
		d.failAt("eval.temperature", "must be 0, which is greedy, or at least 1e-6")
	}
}

func (c *Config) validateTask(d *decoder) {
	t := &c.Task
	if t.Kind == "jsonl" || t.Kind == "gsm8k" {
		if t.Train == "" {
			d.failAt("task.train", "missing; the task %s reads its training queries from this file", t.Kind)
		}
		if t.Eval == "" {
			d.failAt("task.eval", "missing; the task %s reads its held-out queries from this file", t.Kind)
		}
	} else {
		for key, file := range map[string]Path{"task.train": t.Train, "task.eval": t.Eval} {
			if file != "" {
				d.failAt(key, "the task %s reads no file; set task.kind: jsonl to use this one", t.Kind)
			}
		}
		for key, v := range map[string]*Verifier{"task.verifier": &t.Verifier, "task.expert": &t.Expert} {
			if v.given() {
				d.failAt(key, "the task %s scores answers by itself; leave this out", t.Kind)
			}
		}
	}
	if t.Verifier.Kind == "parts" {
		d.failAt("task.verifier.kind", "parts have sub-agents' answers; set task.expert.kind: parts, and a kind that compares answers here")
	}
	if t.Expert.Kind == "parts" && t.Kind == "gsm8k" {
		d.failAt("task.expert.kind", "the rows of gsm8k have no parts; use task.kind: jsonl")
	}
	if len(t.EvalSets) > 0 && t.Kind != "jsonl" {
		d.failAt("task.eval_sets", "only the task jsonl has them; this one is %s", t.Kind)
	}
	if len(t.Curriculum) > 0 && t.Kind != "jsonl" {
		d.failAt("task.curriculum", "only the task jsonl has it; this one is %s", t.Kind)
	}
	for _, s := range t.Curriculum {
		if s.MaxParts > 0 && s.MaxParts < s.MinParts {
			d.failAt("task.curriculum."+s.Name+".max_parts", "must be at least min_parts, %d", s.MinParts)
		}
	}
	if t.Layout != "rows" && t.Kind != "jsonl" {
		d.failAt("task.layout", "only the task jsonl has it; this one is %s", t.Kind)
	}
	if t.Layout != "rows" && t.Fields != defaultFields {
		d.failAt("task.fields", "given besides task.layout, which knows the names; keep one")
	}
	t.Verifier.validate(d, "task.verifier", &t.Judge)
	t.Expert.validate(d, "task.expert", &t.Judge)
	if t.Judge.KeyEnv != "" && !validEnv(t.Judge.KeyEnv) {
		d.failAt("task.judge.key_env", "want the name of an environment variable, not the key")
	}
}

// defaultFields are those of a configuration that names none.
var defaultFields = Fields{ID: "id", Question: "question", Answer: "answer", Choices: "choices", Kind: "kind", Level: "level", Parts: "parts"}

// given says whether the configuration has settings for this verifier.
func (v *Verifier) given() bool {
	return v.Kind != "auto" || v.Overlap != 1 || v.Pattern != "" || v.Tolerance != 0 || v.Relative != 0 || len(v.Command) > 0 || v.Path != "" || v.Tokenizer != ""
}

func (v *Verifier) validate(d *decoder, key string, j *Judge) {
	switch v.Kind {
	case "regex":
		if v.Pattern == "" {
			d.failAt(key+".pattern", "missing; a regex verifier needs it")
		}
	case "judge":
		if !webAddress(j.URL) || j.Model == "" {
			d.failAt("task.judge", "%s asks a judge: url must start with http:// or https://, and model must be given", key)
		}
	}
	for _, k := range []struct {
		key, kind string
		given     bool
	}{
		{"command", "program", len(v.Command) > 0},
		{"path", "torchscript", v.Path != ""},
		{"tokenizer", "torchscript", v.Tokenizer != ""},
	} {
		switch {
		case k.given && v.Kind != k.kind:
			d.failAt(key+"."+k.key, "only a verifier of kind %s has it; this one is %s", k.kind, v.Kind)
		case !k.given && v.Kind == k.kind:
			d.failAt(key+"."+k.key, "missing; a verifier of kind %s needs it", k.kind)
		}
	}
	if v.Overlap != 1 && v.Kind != "parts" {
		d.failAt(key+".overlap", "only a verifier of kind parts has it; this one is %s", v.Kind)
	}
	if v.Pattern == "" {
		return
	}
	if v.Kind != "regex" {
		d.failAt(key+".pattern", "only a verifier of kind regex has a pattern; this one is %s", v.Kind)
	} else if _, err := regexp.Compile(v.Pattern); err != nil {
		d.failAt(key+".pattern", "%v", err)
	}
}

func (c *Config) validateGRPO(d *decoder) {
	g := &c.GRPO
	if g.Aggregation == mgrpo.ConstantLength && g.MaxLength == 0 {
		d.failAt("grpo.max_length", "missing; aggregation constant divides by it")
	}
	if g.KL == mgrpo.KLNone && g.KLCoef > 0 {
		d.failAt("grpo.kl_coef", "needs an estimator: set grpo.kl to k1, k2 or k3")
	}
	if g.TISCap != nil && g.Old != "recomputed" {
		d.failAt("grpo.tis_cap", "needs grpo.old: recomputed; with the sampler's own log-probs every weight is 1")
	}
	if g.StdEps > 0 && g.Convention != "population" && g.Convention != "sample" {
		d.failAt("grpo.std_eps", "convention %s does not add it; only population and sample do", g.Convention)
	}
	if g.Minibatches > c.Task.QueriesPerStep {
		d.failAt("grpo.minibatches", "must be at most task.queries_per_step, %d: a minibatch takes whole queries", c.Task.QueriesPerStep)
	}
	if aligned := g.Align.Mode != "none" && len(c.Subs()) > 0; g.Convention == "leave_one_out_std" && aligned {
		d.failAt("grpo.convention", "leave_one_out_std needs trajectories of weight 1, but grpo.align.mode %s gives other weights; set it to none", g.Align.Mode)
	}
	if g.MaxLag > 0 && g.TISCap == nil {
		d.failAt("grpo.max_lag", "rollouts of older versions need importance weights: set grpo.old: recomputed and grpo.tis_cap")
	}
	if det := c.Run.Deterministic; g.MaxLag > 0 && det != nil && *det {
		d.failAt("grpo.max_lag", "the versions that sample then depend on the clock: run.deterministic cannot be true")
	}
	if g.RoutingStop < g.RoutingWarn {
		d.failAt("grpo.routing_stop", "must be at least grpo.routing_warn, %s", formatFloat(g.RoutingWarn))
	}
	if g.GapStop < g.GapWarn {
		d.failAt("grpo.gap_stop", "must be at least grpo.gap_warn, %s", formatFloat(g.GapWarn))
	}
}

func (t *Tool) validate(d *decoder) {
	key := "tools." + t.Name
	if t.Kind == "search" && t.Corpus == "" {
		d.failAt(key+".corpus", "missing; search needs a JSONL file or a folder of Markdown")
	}
	if t.Kind == "mcp" && (len(t.Command) == 0) == (t.URL == "") {
		d.failAt(key, "an MCP server needs either command or url")
	}
	if t.URL != "" && !webAddress(t.URL) {
		d.failAt(key+".url", "must start with http:// or https://")
	}
	for _, given := range []struct {
		key, kind string
		is        bool
	}{
		{"corpus", "search", t.Corpus != ""},
		{"command", "mcp", len(t.Command) > 0},
		{"url", "mcp", t.URL != ""},
		{"token_env", "mcp", t.TokenEnv != ""},
		{"env", "mcp", len(t.Env) > 0},
	} {
		if given.is && t.Kind != given.kind {
			d.failAt(key+"."+given.key, "only a tool of kind %s has it; this one is %s", given.kind, t.Kind)
		}
	}
	if t.TokenEnv != "" {
		if !validEnv(t.TokenEnv) {
			d.failAt(key+".token_env", "want the name of an environment variable, not the token")
		}
		if len(t.Command) > 0 {
			d.failAt(key+".token_env", "only for url, to which it is sent; a program on stdio gets its variables through env")
		}
	}
	for i, e := range t.Env {
		if !validEnv(e) {
			d.failAt(fmt.Sprintf("%s.env[%d]", key, i), "want the name of an environment variable")
		}
	}
}

func (c *Config) validateTeam(d *decoder) {
	var main []string
	learns := false
	for i := range c.Agents {
		a := &c.Agents[i]
		if a.Role == "main" {
			main = append(main, a.Name)
		}
		learns = learns || c.Learns(a)
	}
	switch {
	case len(main) == 0:
		d.failAt("agents", "one agent must have role: main")
	case len(main) > 1:
		d.failAt("agents."+main[1]+".role", "%s is main already; a team has one main agent", main[0])
	case !learns && c.Run.Steps > 0:
		d.failAt("agents", "no agent learns in the arm %s; set train: true on one, or run.steps: 0", c.Run.Arm)
	}
}

// validateQuantised refuses what weights that stay quantised cannot be.
func (c *Config) validateQuantised(d *decoder, a *Agent, key string) {
	switch {
	case !a.Adapts() && (c.Learns(a) || c.ColdStarts(a)):
		d.failAt(key+".dtype", "quantised weights cannot be trained in full; set dtype: auto, train adapters (lora), or set train: false and no cold start")
	case a.Model.Endpoint == nil && !strings.EqualFold(filepath.Ext(string(a.Model.Path)), ".gguf"):
		d.failAt(key+".dtype", "only the model of a .gguf file can stay quantised; set dtype: auto")
	case a.Engine.Remote():
		d.failAt(key+".dtype", "a server takes whole weights, and quantised ones cannot be written; set dtype: auto")
	case a.Engine.DType != "auto":
		d.failAt(key+".engine.dtype", "the weights stay quantised for sampling, too; leave this out")
	}
}

var deviceForm = regexp.MustCompile(`^(cpu|cuda(:[0-9]{1,4})?)$`)

func (c *Config) validateAgent(d *decoder, a *Agent) {
	key := "agents." + a.Name
	if strings.ContainsAny(a.Device, ", ") {
		d.failAt(key+".device", "several devices for one agent are not supported yet; give one")
	} else if !deviceForm.MatchString(a.Device) {
		d.failAt(key+".device", "%q is not possible; valid are cpu, cuda, cuda:N", clip(a.Device))
	}
	if a.DType == "bf16" && a.Device == "cpu" {
		d.failAt(key+".dtype", "bf16 is for GPUs; on the CPU an agent is fp32")
	}
	if a.Quantised() {
		c.validateQuantised(d, a, key)
	}
	a.Engine.validate(d, key+".engine")
	if n := a.ContextTokens(math.MaxInt); a.Engine.CacheTokens > 0 && a.Engine.CacheTokens < n {
		d.failAt(key+".engine.cache_tokens", "%d tokens are less than one conversation may have, %d (engine.context or limits.max_tokens)", a.Engine.CacheTokens, n)
	}
	if n := a.Engine.Conversations; n > 0 && n < c.Slots(a) {
		d.failAt(key+".engine.conversations", "%d are fewer than can sample at once, %d (engine.slots)", n, c.Slots(a))
	}
	if a.Engine.DType == "bf16" && a.Device != "cpu" {
		d.failAt(key+".engine.dtype", "bf16 beside fp32 training is for the CPU; on a GPU set dtype: bf16")
	}
	a.LoRA.validate(d, key+".lora")
	if a.Prompt != "" && a.PromptText != "" {
		d.failAt(key+".prompt_text", "given besides prompt; keep one")
	}
	if a.PromptSingle != "" && a.Role != "main" {
		d.failAt(key+".prompt_single", "given for a sub-agent, which takes no part in the arm single")
	}
	if a.Limits.MaxNewTokens > a.Limits.MaxTokens {
		d.failAt(key+".limits.max_new_tokens", "must be at most max_tokens, %d", a.Limits.MaxTokens)
	}
	c.validateDelegates(d, a)
	c.validateTools(d, a)
	if c.GRPO.Reference == "cold_start" && c.HasKL(a) && a.Reference == "" && !c.ColdStarts(a) {
		d.failAt("grpo.reference", "is cold_start, but %s has no cold start: set auto, or %s.reference", a.Name, key)
	}
	a.Optimizer.validate(d, key+".optimizer")
	if a.ColdStart.Steps > 0 {
		a.ColdStart.Optimizer.validate(d, key+".cold_start.optimizer")
	}
	if a.Model.Shape != nil {
		a.Model.Shape.validate(d, key+".model")
	}
	if a.Model.Endpoint != nil {
		c.validateHosted(d, a)
	}
}

func (c *Config) validateHosted(d *decoder, a *Agent) {
	key, e := "agents."+a.Name, a.Model.Endpoint
	if u, err := url.Parse(e.URL); !webAddress(e.URL) || err != nil || u.User != nil {
		d.failAt(key+".model.url", "must start with http:// or https:// and have no user in it; a key comes from the environment variable that key_env names")
	}
	if e.Name == "" {
		d.failAt(key+".model.name", "missing; the API wants the name of a model")
	}
	if e.KeyEnv != "" && !validEnv(e.KeyEnv) {
		d.failAt(key+".model.key_env", "want the name of an environment variable, not the key")
	}
	for _, own := range []struct {
		key   string
		given bool
	}{{"device", a.Device != "cpu"}, {"dtype", a.DType != "auto"}, {"reference", a.Reference != ""}, {"engine.kind", a.Engine.Remote()}, {"lora", a.Adapts()}} {
		if own.given {
			d.failAt(key+"."+own.key, "the model of %s is hosted and has none; leave this out", a.Name)
		}
	}
	if c.Task.Kind == "research" {
		d.failAt(key+".model", "the task research speaks a language of its own, which a hosted model does not know; use jsonl or gsm8k")
	}
}

func (l LoRA) validate(d *decoder, key string) {
	given := l.Alpha != 0 || len(l.Targets) > 0 || l.RSLoRA
	switch {
	case l.Folder() != "" && (given || l.R > 0):
		d.failAt(key+".init", "names an adapter, which has its own r, alpha, targets and rslora; leave those out")
	case l.Folder() == "" && l.R == 0 && (given || l.Init == "gaussian"):
		d.failAt(key+".r", "missing: the rank of the adapters, such as 16")
	case l.R > 0:
		if err := lora.New(l.R, l.Alpha, l.RSLoRA, l.Targets).Validate(); err != nil {
			d.failAt(key+".targets", "%v", err)
		}
	}
}

func (e *Engine) validate(d *decoder, key string) {
	for _, k := range []struct {
		key   string
		given bool
	}{
		{"url", len(e.URL) > 0}, {"key_env", e.KeyEnv != ""}, {"weights.path", e.Weights.Path != ""},
		{"weights.dtype", e.Weights.DType != "bf16"}, {"weights.tolerance", e.Weights.Tolerance != 0},
	} {
		if k.given && !e.Remote() {
			d.failAt(key+"."+k.key, "only an engine of kind vllm or sglang has it; this one is %s", e.Kind)
		}
	}
	if !e.Remote() {
		return
	}
	if e.CacheTokens != 0 {
		d.failAt(key+".cache_tokens", "only an engine of kind local has it; this one is %s, whose server has a cache of its own", e.Kind)
	}
	if len(e.URL) == 0 {
		d.failAt(key+".url", "missing; an engine of kind %s needs the address of a server", e.Kind)
	}
	for i, u := range e.URL {
		if item := fmt.Sprintf("%s.url[%d]", key, i); !webAddress(u) {
			d.failAt(item, "must start with http:// or https://")
		} else if slices.Contains(e.URL[:i], u) {
			d.failAt(item, "is given twice")
		}
	}
	if e.Weights.Path == "" {
		d.failAt(key+".weights.path", "missing; an engine of kind %s needs a folder to read weights from", e.Kind)
	}
	if e.KeyEnv != "" && !validEnv(e.KeyEnv) {
		d.failAt(key+".key_env", "want the name of an environment variable, not the key")
	}
	if e.DType != "auto" {
		d.failAt(key+".dtype", "only an engine of kind local has it; this one is %s, with the type that the server was started with", e.Kind)
	}
}

func (c *Config) validateDelegates(d *decoder, a *Agent) {
	key := "agents." + a.Name + ".delegates"
	if a.Role == "sub" && len(a.Delegates) > 0 {
		d.failAt(key, "only the main agent delegates")
		return
	}
	var subs []string
	for _, other := range c.Agents {
		if other.Role == "sub" {
			subs = append(subs, other.Name)
		}
	}
	for i, name := range a.Delegates {
		item := fmt.Sprintf("%s[%d]", key, i)
		if !slices.Contains(subs, name) {
			d.failAt(item, "%q is not a sub-agent; %s", clip(name), didYouMean(name, subs))
		} else if slices.Contains(a.Delegates[:i], name) {
			d.failAt(item, "%q is given twice", name)
		}
	}
}

func (c *Config) validateTools(d *decoder, a *Agent) {
	known := slices.Clone(builtinTools)
	for _, t := range c.Tools {
		known = append(known, t.Name)
	}
	for i, name := range a.Tools {
		item := fmt.Sprintf("agents.%s.tools[%d]", a.Name, i)
		switch {
		case !slices.Contains(known, name):
			d.failAt(item, "%q is not a tool; %s", clip(name), didYouMean(name, known))
		case slices.Contains(a.Tools[:i], name):
			d.failAt(item, "%q is given twice", name)
		case slices.Contains(a.Delegates, name):
			d.failAt(item, "%q is also a sub-agent of %s; rename one of them", name, a.Name)
		}
	}
}

func (o *Optimizer) validate(d *decoder, key string) {
	if o.Schedule != "constant" && float64(o.Warmup) > float64(o.DecaySteps) {
		d.failAt(key+".warmup", "must be at most decay_steps, %d", o.DecaySteps)
	}
}

func (s *Shape) validate(d *decoder, key string) {
	switch {
	case s.HeadDim == 0:
		d.failAt(key+".head_dim", "missing; width %d is no multiple of heads, %d", s.Width, s.Heads)
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
		d.failAt(key+".tokenizer", "want task or a folder with tokenizer.json")
	}
}

var envForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func validEnv(s string) bool { return envForm.MatchString(s) }

func webAddress(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}
