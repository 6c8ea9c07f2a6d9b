// Package standalone uses one checkpoint without a run. It loads the weights onto a device, and the tokenizer, if there is
// one. A Checkpoint then samples (OpenEngine), replies to chats (Reply), answers requests (Serve), continues and scores JSON lines
// (Generate, Score), and writes checkpoints (Merge, Export). Tokenize, Detokenize and Render convert JSON lines with a tokenizer alone.
package standalone

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/cgroup"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/local"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/hub"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
	"github.com/mgrpo/mgrpo/trainer/run/selftest"
)

// Options are the device and the precision of a checkpoint's model. The zero value uses the CPU.
type Options struct {
	Device  string // "cpu", "cuda" or "cuda:N"; "": cpu
	Threads int    // number of CPU threads; 0 means one per core
	DType   string // "fp32", "bf16", "quantised" (as in a GGUF file), or "auto" or "": fp32 on the CPU, bf16 on a GPU
	Context int    // tokens of the longest sequence; 0 means the model's limit
	Adapter string // folder of a LoRA adapter in PEFT's format; "": none
}

// Checkpoint is a loaded checkpoint: a model ready to generate and to score, with its tokenizer. Its methods may be called from
// several goroutines, except Close.
type Checkpoint struct {
	Tokenizer *tokenizer.Tokenizer // nil if the checkpoint does not have a readable one; then input and output are token ids
	Notes     []string             // sentences about ignored parts of the checkpoint, and about kernels that are not used

	model   *model.Model // with the adapter, if there is one
	unread  error        // reason why the tokenizer cannot be read; nil: it can, or there is none
	device  *torch.Device
	base    *model.Model
	adapter *model.Adapters // may be nil
	mu      sync.Mutex
	engines []policy.Policy // mu guards them
	path    string
	dtype   weights.DType // type of the checkpoint's weights
}

// Open loads the checkpoint at path: a Hugging Face folder, a GGUF file, or the name of a model on the Hub that is in the
// local cache. It first checks the kernels of the device, once in a process. If the checkpoint does not have a readable tokenizer,
// Tokenizer is nil, and NoTokenizerError returns the reason.
func Open(ctx context.Context, path string, opt Options) (c *Checkpoint, err error) {
	if !slices.Contains([]string{"", "auto", "fp32", "bf16", "quantised"}, opt.DType) {
		return nil, fmt.Errorf("dtype %q: must be auto, fp32, bf16 or quantised", opt.DType)
	}
	if path, err = hub.Find(path, path); err != nil {
		return nil, err
	}
	src, err := weights.Open(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	c = &Checkpoint{path: path, dtype: src.DType()}
	if src.GGUFMeta() != nil || exists(filepath.Join(path, "tokenizer.json")) || exists(filepath.Join(path, "tokenizer.model")) {
		if c.Tokenizer, c.unread = tokenizer.LoadCheckpoint(path, src.GGUFMeta()); c.unread != nil {
			c.Notes = append(c.Notes, fmt.Sprintf("the tokenizer cannot be read, so only token ids are accepted: %v", c.unread))
		}
	}
	threads := opt.Threads
	if threads == 0 {
		threads = cgroup.UsableCores().N
	}
	device := cmp.Or(opt.Device, "cpu")
	leftOut, err := selftest.CheckDevice(ctx, device)
	if err != nil {
		return nil, err
	}
	for _, r := range leftOut {
		c.Notes = append(c.Notes, r.LeftOut())
	}
	if c.device, err = torch.Open(device, threads); err != nil {
		return nil, err
	}
	modelOptions := model.Options{Compute: computeType(opt.DType, c.device), Quantised: opt.DType == "quantised", Frozen: true, MaxPosition: opt.Context}
	if c.base, err = model.Load(ctx, c.device, src, modelOptions); err != nil {
		return nil, errors.Join(err, c.device.Close())
	}
	c.model, c.Notes = c.base, append(src.Notes(), c.Notes...)
	if opt.Adapter != "" {
		if err = c.adapt(ctx, opt.Adapter); err != nil {
			return nil, errors.Join(err, c.Close(context.WithoutCancel(ctx)))
		}
	}
	return c, nil
}

func (c *Checkpoint) adapt(ctx context.Context, folder string) error {
	read, err := weights.ReadAdapter(folder, c.base.Config)
	if err != nil {
		return err
	}
	if c.adapter, err = model.Adapt(ctx, c.base, read.Config, read.Layout, read.Fill); err != nil {
		return err
	}
	c.model = c.adapter.Model()
	return nil
}

// Merge writes a Hugging Face folder of the model with the adapter merged. Every changed weight is W + scale·B A, computed in float32 and
// rounded once to the type of the checkpoint. dir must not exist. It also writes the tokenizer. Merge returns an error if the tokenizer
// cannot be read, if there is no adapter, or if the model is not in float32 (Options.DType).
func (c *Checkpoint) Merge(ctx context.Context, dir string) error {
	if c.unread != nil {
		return c.unread
	}
	if c.adapter == nil {
		return errors.New("the checkpoint was opened without an adapter, so there is nothing to merge")
	}
	if c.base.Master == nil {
		return errors.New("a merge needs the weights in float32: open the checkpoint with DType fp32")
	}
	var files map[string][]byte
	if c.Tokenizer != nil {
		files = c.Tokenizer.Files()
	}
	return c.base.HF(c.merged(ctx)).WriteFolder(dir, c.dtype, files)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

func computeType(name string, d *torch.Device) torch.DType {
	if name == "bf16" || name != "fp32" && d.IsCUDA() {
		return torch.BFloat16
	}
	return torch.Float32
}

// LoadTokenizer reads the tokenizer of a checkpoint without its weights: from a folder, which may have no weights, or
// from the metadata of a GGUF file.
func LoadTokenizer(path string) (*tokenizer.Tokenizer, error) {
	path, err := hub.Find(path, path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return tokenizer.Load(path)
	}
	src, err := weights.Open(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	return tokenizer.LoadCheckpoint(path, src.GGUFMeta())
}

// OpenEngine starts a rollout engine on the checkpoint's weights, which samples up to `slots` sequences at a time. Close also closes it.
func (c *Checkpoint) OpenEngine(ctx context.Context, slots int) (policy.Policy, error) {
	var tenantOpt local.TenantOptions
	if c.Tokenizer != nil {
		tenantOpt.TokenBytes = c.Tokenizer.TokenBytes
	}
	engine, err := local.OpenTenant(ctx, c.model, local.Options{Slots: slots, CacheTokens: cacheTokens(slots, c.model.MaxPosition())}, tenantOpt)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.engines = append(c.engines, engine)
	return engine, nil
}

// Reply samples the assistant's turn after the messages of a chat, in the chat template of the checkpoint's tokenizer. It returns the
// text, without special tokens, and the sampled tokens. engine is from OpenEngine. If the sampling has no StopIDs, the turn ends at those
// of the method StopIDs. On a CPU, equal chats, settings and seeds give equal replies.
func (c *Checkpoint) Reply(ctx context.Context, engine policy.Sampler, chat tokenizer.Chat, sampling policy.Sampling, seed uint64) (
	string, policy.Completion, error) {
	if c.Tokenizer == nil {
		return "", policy.Completion{}, c.NoTokenizerError()
	}
	chat.AddGenerationPrompt = true
	prompt, err := c.Tokenizer.Render(chat)
	if err != nil {
		return "", policy.Completion{}, err
	}
	if sampling.StopIDs == nil {
		sampling.StopIDs = c.StopIDs()
	}
	completion, err := engine.Generate(ctx, policy.Request{Tokens: c.Tokenizer.Encode(prompt), Sampling: sampling,
		Key: policy.Key{RunSeed: seed, Query: "reply"}})
	return c.text(completion.Tokens, sampling.StopIDs), completion, err
}

// text decodes the sampled tokens of a turn without the token that ended it and without special tokens.
func (c *Checkpoint) text(ids, stops []int32) string {
	if n := len(ids) - 1; n >= 0 && slices.Contains(stops, ids[n]) {
		ids = ids[:n]
	}
	return c.Tokenizer.Decode(ids, true)
}

// maxCached is the largest number of tokens whose keys and values an engine keeps, over all conversations. The limit of a
// single conversation may be larger. Without maxCached, the cache for sixteen conversations with a model of 131,072
// positions would exceed the memory of every GPU.
const maxCached = 1 << 17

// cacheTokens returns the size of the cache for conversations of at most limit tokens; 0 means that all of them fit at
// once.
func cacheTokens(slots, limit int) int {
	if slots*limit <= maxCached {
		return 0
	}
	return max(limit, maxCached)
}

// StopIDs returns the token ids that end a turn, from the tokenizer's files and the model's configuration.
func (c *Checkpoint) StopIDs() []int32 {
	ids := slices.Clone(c.model.Config.Tokens.EOS)
	if c.Tokenizer != nil {
		ids = append(ids, c.Tokenizer.StopIDs()...)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// NoTokenizerError returns the error for text input to a checkpoint without a tokenizer.
func (c *Checkpoint) NoTokenizerError() error {
	if c.unread != nil {
		return fmt.Errorf("the tokenizer cannot be read: give token ids: %w", c.unread)
	}
	return fmt.Errorf("%s does not contain tokenizer.json: give token ids, or put the tokenizer's files next to the weights", c.path)
}

// Close ends the engines, and frees the weights and the device.
func (c *Checkpoint) Close(ctx context.Context) error {
	var err error
	for _, e := range c.engines {
		err = errors.Join(err, e.Close(ctx))
	}
	if c.adapter != nil {
		err = errors.Join(err, c.adapter.Close(ctx))
	}
	return errors.Join(err, c.base.Close(ctx), c.device.Close())
}
