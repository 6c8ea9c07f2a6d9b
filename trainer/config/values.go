package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"time"

	"github.com/mgrpo/mgrpo/trainer/model/hub"
)

// Path is a path as it was written. Relative paths start from the configuration file's folder; Config.Resolve resolves
// them.
type Path string

// Model is the source of an agent's initial weights, or the address of a hosted model. Exactly one field is set.
type Model struct {
	Path     Path      // a Hugging Face folder, a GGUF file or a name on the Hub
	Shape    *Shape    // random weights of this shape
	Module   *Module   // a TorchScript module
	Endpoint *Endpoint // a hosted model, which is never trained
}

// Module is a model whose forward pass is a program that its user exported.
type Module struct {
	// A file of torch.jit.save, a module forward(tokens, positions, segments) -> hidden states. Its folder also has
	// config.json, the parameters in model.safetensors, and tokenizer.json. The module is a program that runs in the
	// worker: name only files whose author you trust.
	TorchScript Path `yaml:"torchscript" required:"true"`
}

// Folder returns the folder of the module's weights and tokenizer.
func (m *Module) Folder() Path { return Path(filepath.Dir(string(m.TorchScript))) }

// section returns the model's keys. ok is false for a path, which has no keys.
func (m Model) section() (keys reflect.Value, ok bool) {
	for i, v := 0, reflect.ValueOf(m); i < v.NumField(); i++ {
		if f := v.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			return f.Elem(), true
		}
	}
	return reflect.Value{}, false
}

// Endpoint is a model on another party's server.
type Endpoint struct {
	// openai: the model is hosted behind an OpenAI-compatible API and takes part frozen; the next five keys are its
	// own.
	Kind string `yaml:"kind" required:"true" enum:"openai"`

	// Base URL of the API, such as https://host/v1.
	URL string `yaml:"url" required:"true" change:"resume"`

	// Model name sent to it.
	Name string `yaml:"name" required:"true"`

	// Environment variable with the API key. Absent: no key is sent.
	KeyEnv string `yaml:"key_env" change:"worker"`

	// Longest wait for one reply.
	Timeout time.Duration `yaml:"timeout" default:"2m" above:"0s" change:"worker"`

	// Number of times that a request is repeated after a time-out, a broken connection, or the status 408, 425, 429 or
	// 5xx. Pauses double from half a second, or follow Retry-After. After the last failure the rollout is removed.
	Retries int `yaml:"retries" default:"5" min:"0" max:"20" change:"worker"`
}

// Shape describes a decoder with random initial weights.
type Shape struct {
	// Architecture.
	Family string `yaml:"family" default:"qwen3" family:"true"`

	// Hidden size.
	Width int `yaml:"width" required:"true" min:"1" max:"1e6"`

	// Decoder layers.
	Layers int `yaml:"layers" required:"true" min:"1" max:"1000"`

	// Query heads.
	Heads int `yaml:"heads" required:"true" min:"1" max:"65536"`

	// Key and value heads, a divisor of heads. 0: heads.
	KVHeads int `yaml:"kv_heads" default:"0" min:"0" max:"65536" derived:"true"`

	// Size of a head, even. 0: width / heads.
	HeadDim int `yaml:"head_dim" default:"0" min:"0" max:"1e6" derived:"true"`

	// Inner size of the feed-forward part.
	FFN int `yaml:"ffn" required:"true" min:"1" max:"1e7"`

	// Experts of each layer, in families with a mixture of experts. These families also need the next two keys.
	Experts int `yaml:"experts" default:"0" min:"0" max:"65536"`

	// Experts that each token goes through.
	PerToken int `yaml:"experts_per_token" default:"0" min:"0" max:"65536"`

	// Inner size of an expert.
	ExpertFFN int `yaml:"expert_ffn" default:"0" min:"0" max:"1e7"`

	// Embedding and output head share their weights.
	Tied bool `yaml:"tied" default:"true"`

	// Rows of the embedding. 0: the tokenizer's.
	Vocab int `yaml:"vocab" default:"0" min:"0" max:"1e8"`

	// task: the task's own vocabulary. Otherwise a folder with tokenizer.json, or a model on the Hub.
	Tokenizer Path `yaml:"tokenizer" default:"task" words:"task" hub:"true"`

	// Longest sequence.
	MaxPositions int `yaml:"max_positions" default:"1024" min:"1" max:"1e9"`

	// Base of the rotary embedding.
	RopeTheta float64 `yaml:"rope_theta" default:"10000" above:"0"`

	// Epsilon of RMSNorm.
	NormEps float64 `yaml:"norm_eps" default:"1e-6" above:"0"`

	// Seed of the weights. 0: from run.seed and the agent's name.
	InitSeed uint64 `yaml:"init_seed" default:"0"`
}

// Variables holds names with values of any kind, as a JSON object; "" means none.
type Variables string

// Resolve resolves a path of the configuration against the configuration file's folder. It returns absolute paths and
// the empty path unchanged.
func (c *Config) Resolve(p Path) string {
	if p == "" || filepath.IsAbs(string(p)) {
		return string(p)
	}
	return filepath.Join(c.dir, string(p))
}

// Find resolves a model's path, which may also be a name on the Hub. If the model is missing, the error explains how to
// get it.
func (c *Config) Find(p Path) (string, error) { return hub.Find(c.Resolve(p), string(p)) }

// Base returns the name of a model for other programs: a path, or a name on the Hub and its revision, which may be "".
func (c *Config) Base(p Path) (name, revision string) {
	if c.onHub(p) {
		return hub.Split(string(p))
	}
	return string(p), ""
}

// onHub reports whether a model's path is a name on the Hub. A file or folder with that name takes precedence.
func (c *Config) onHub(p Path) bool {
	_, err := os.Stat(c.Resolve(p))
	return hub.IsName(string(p)) && errors.Is(err, fs.ErrNotExist)
}

// InFolder returns the configuration of the same file in another folder: relative paths start from dir.
func InFolder(c *Config, dir string) *Config {
	moved := *c
	moved.dir = dir
	return &moved
}

// from returns a pathWriter that rewrites paths for a configuration file in the folder dir. It keeps absolute paths,
// except dir itself, because a run's folder may be moved together with the configuration in it.
func (c *Config) from(dir string) pathWriter {
	return func(p Path, hub bool) Path {
		if filepath.IsAbs(string(p)) && filepath.Clean(string(p)) == filepath.Clean(dir) {
			return "."
		}
		if p == "" || filepath.IsAbs(string(p)) || hub && c.onHub(p) {
			return p
		}
		relative, err := filepath.Rel(dir, c.Resolve(p))
		if err != nil { // dir is relative
			return Path(c.Resolve(p))
		}
		return Path(relative)
	}
}

// formatFloat writes x so that it reads back as the same number.
func formatFloat(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
