package standalone

import (
	"context"
	"errors"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/model/hub"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// Export writes the checkpoint at path as a GGUF file, with matrices of the type F32, BF16, F16 or Q8_0, its tokenizer and its chat
// template. If an adapter is named, it is merged. Export returns an error that names any setting that GGUF cannot
// represent.
func Export(ctx context.Context, path, adapter, file, dtype string) (err error) {
	if path, err = hub.Find(path, path); err != nil {
		return err
	}
	src, err := weights.Open(path)
	if err != nil {
		return err
	}
	defer src.Close()
	tok, err := tokenizer.LoadCheckpoint(path, src.GGUFMeta())
	if err != nil {
		return fmt.Errorf("a GGUF file needs the tokenizer: %w", err)
	}
	cfg := src.Config()
	meta, err := tok.GGUF(cfg.VocabSize)
	if err != nil {
		return err
	}
	shapes := map[string][]int64{}
	for _, t := range cfg.Layout().Tensors() {
		shapes[t.Name] = t.Shape
	}
	read := func(name string, dst []float32) error { return src.Read(name, 0, shapes[name][0], dst) }
	if adapter != "" {
		c, err := Open(ctx, path, Options{Device: "cpu", DType: "fp32", Adapter: adapter})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
		read = c.merged(ctx)
	}
	return weights.WriteGGUF(file, cfg, meta, read, weights.DType(dtype))
}

// merged returns a function that reads a tensor of the model with the adapter merged into it.
func (c *Checkpoint) merged(ctx context.Context) func(name string, dst []float32) error {
	return c.adapter.Reader(ctx, func(from int64, dst []float32) error { return c.adapter.Master().Read(ctx, from, dst) })
}
