package standalone

import (
	"context"
	"errors"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/model/hub"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// ExportOptions are the options of Export.
type ExportOptions struct {
	Adapter string // folder of a LoRA adapter in PEFT's format, which is merged into the model; "": none
	DType   string // type of the matrices: F32, BF16, F16 or Q8_0
}

// Export writes the checkpoint at path to a GGUF file, with its tokenizer and its chat template. It returns an error that names
// any setting that GGUF cannot represent.
func Export(ctx context.Context, path, file string, opt ExportOptions) (err error) {
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
	if opt.Adapter != "" {
		c, err := Open(ctx, path, Options{Device: "cpu", DType: "fp32", Adapter: opt.Adapter})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
		read = c.merged(ctx)
	}
	return weights.WriteGGUF(file, cfg, meta, read, weights.DType(opt.DType))
}

// merged returns a function that reads a tensor of the model with the adapter merged into it.
func (c *Checkpoint) merged(ctx context.Context) func(name string, dst []float32) error {
	return c.adapter.Reader(ctx, func(from int64, dst []float32) error { return c.adapter.Master().Read(ctx, from, dst) })
}
