package weights

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// shardLimit is the largest weight file that HF writes, in bytes of data, unless a single tensor is larger.
const shardLimit = 4 << 30

// WriteFolder writes a complete Hugging Face folder: config.json, generation_config.json, safetensors (above 4 GiB in shards
// with an index), and the files of extra by name (tokenizer.json, chat_template.jinja, ...). A generation_config.json in
// extra replaces the derived one. Values are rounded to dtype (F32, BF16 or F16). dir must not exist. After a crash it is
// either complete or missing.
func (h HF) WriteFolder(dir string, dtype DType, extra map[string][]byte) error {
	_, err := durable.NewFolder(durable.OS{}, dir, func(f *durable.Folder) error { return h.Write(f, dtype, extra) })
	if err != nil {
		return fmt.Errorf("weights: writing %s: %w", dir, err)
	}
	return nil
}

// Files is the content of a folder of weights.
type Files interface {
	// Write writes the weights, their description, and the files of extra by name. The weights are rounded to dtype if the
	// format allows a choice.
	Write(f *durable.Folder, dtype DType, extra map[string][]byte) error
}

// HF is a whole model, written to the files of a Hugging Face folder.
type HF struct {
	Config arch.Config
	Read   func(name string, dst []float32) error // fills dst with all values of a tensor, as float32
	Form   *Form                                  // layout of the folder that the model was read from; nil: plain
	Wide   map[string]bool                        // names of tensors that are written in F32; see Source.Wide
}

func (h HF) Write(f *durable.Folder, dtype DType, extra map[string][]byte) error {
	return h.write(f, dtype, extra, shardLimit)
}

func (h HF) write(f *durable.Folder, dtype DType, extra map[string][]byte, limit int64) error {
	configJSON, err := configJSON(h.Config, dtype)
	if err != nil {
		return err
	}
	generation := extra[generationFile]
	if blank(generation) {
		if generation, err = h.Config.Tokens.GenerationJSON(); err != nil {
			return err
		}
	}
	rest := map[string][]byte{}
	if h.Form != nil {
		maps.Copy(rest, h.Form.files)
	}
	maps.Copy(rest, extra)
	delete(rest, generationFile)
	tensors := h.tensors(dtype)
	if h.Form != nil {
		tensors = h.Form.arrange(tensors, h.Config.Body()+"embed_tokens.weight")
	}
	if err := writeWeights(f, tensors, limit); err != nil {
		return err
	}
	runtime.KeepAlive(h.Form)
	if err := f.CreateExtra(rest, configFile, safetensorsFile, safetensorsIndex); err != nil {
		return err
	}
	if err := f.CreateBytes(generationFile, generation); err != nil {
		return err
	}
	return f.CreateBytes(configFile, configJSON)
}

var torchNames = map[DType]string{F32: "float32", BF16: "bfloat16", F16: "float16"}

func configJSON(cfg arch.Config, dtype DType) ([]byte, error) {
	name, ok := torchNames[dtype]
	if !ok {
		return nil, fmt.Errorf("weights are written as F32, BF16 or F16, not %s", dtype)
	}
	return cfg.JSON(name)
}

// OutTensor describes a tensor to write. Write writes its Size bytes.
type OutTensor struct {
	Name  string
	DType string // as the format names it: F32, I64, ...
	Shape []int64
	Size  int64
	Write func(io.Writer) error
}

func byName(a, b OutTensor) int { return strings.Compare(a.Name, b.Name) }

// tensors sorts the model's tensors by name, and fuses the tensors that are always written fused. The others share one buffer of
// float32 values.
func (h HF) tensors(narrow DType) []OutTensor {
	var buffer []float32
	var out []OutTensor
	fused := map[string][]arch.Tensor{}
	dtypeOf := func(name string) DType {
		if h.Wide[name] {
			return F32
		}
		return narrow
	}
	for _, t := range h.Config.Layout().Tensors() {
		if t.Fused.Always {
			fused[t.Fused.Name] = append(fused[t.Fused.Name], t)
			continue
		}
		dtype := dtypeOf(t.Name)
		out = append(out, OutTensor{t.Name, string(dtype), t.Shape, t.Numel() * dtype.Size(), func(w io.Writer) error {
			n := int(t.Numel())
			buffer = slices.Grow(buffer[:0], n)[:n]
			if err := h.Read(t.Name, buffer); err != nil {
				return fmt.Errorf("tensor %s: %w", t.Name, err)
			}
			return WriteFloats(w, dtype, buffer)
		}})
	}
	for _, parts := range fused {
		out = append(out, fuse(parts, h.Read, dtypeOf(parts[0].Name)))
	}
	slices.SortFunc(out, byName)
	return out
}

// WriteFloats encodes and writes values, one chunk at a time. It returns an error for a value that F16 cannot represent.
func WriteFloats(w io.Writer, dtype DType, values []float32) error {
	const beyond = 65520 // this and larger values round to infinity
	var encoded []byte
	for chunk := range slices.Chunk(values, scanChunk) {
		if i := slices.IndexFunc(chunk, func(v float32) bool { return v >= beyond || v <= -beyond }); dtype == F16 && i >= 0 {
			return fmt.Errorf("the value %g is too large for F16: save as F32 or BF16 (run.save_dtype)", chunk[i])
		}
		encoded = encodeAs(encoded[:0], dtype, chunk)
		if _, err := w.Write(encoded); err != nil {
			return err
		}
	}
	return nil
}

// writeWeights writes model.safetensors, or shards and their index.
func writeWeights(f *durable.Folder, tensors []OutTensor, limit int64) error {
	shards, total := splitShards(tensors, limit)
	if len(shards) == 1 {
		return f.Create(safetensorsFile, func(w io.Writer) error { return WriteSafetensors(w, tensors) })
	}
	weightMap := map[string]string{}
	for i, shard := range shards {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
		for _, t := range shard {
			weightMap[t.Name] = name
		}
		if err := f.Create(name, func(w io.Writer) error { return WriteSafetensors(w, shard) }); err != nil {
			return err
		}
	}
	index, err := json.MarshalIndent(map[string]any{"metadata": map[string]any{"total_size": total}, "weight_map": weightMap}, "", "  ")
	if err != nil {
		return err
	}
	return f.CreateBytes(safetensorsIndex, append(index, '\n'))
}

// splitShards splits the list into shards of at most limit bytes. A larger tensor is a shard of its own.
func splitShards(tensors []OutTensor, limit int64) (shards [][]OutTensor, total int64) {
	var start int
	var size int64
	for i, t := range tensors {
		if size > 0 && size+t.Size > limit {
			shards, start, size = append(shards, tensors[start:i]), i, 0
		}
		size += t.Size
		total += t.Size
	}
	return append(shards, tensors[start:]), total
}

// WriteSafetensors writes a header, with padding to a multiple of 8 bytes, and the tensors in the given order.
func WriteSafetensors(w io.Writer, tensors []OutTensor) error {
	header := []byte(`{"__metadata__":{"format":"pt"}`)
	var at int64
	for _, t := range tensors {
		name, err := json.Marshal(t.Name)
		if err != nil {
			return err
		}
		entry, err := json.Marshal(struct {
			DType   string   `json:"dtype"`
			Shape   []int64  `json:"shape"`
			Offsets [2]int64 `json:"data_offsets"`
		}{t.DType, t.Shape, [2]int64{at, at + t.Size}})
		if err != nil {
			return err
		}
		header = fmt.Appendf(header, ",%s:%s", name, entry)
		if t.Size > math.MaxInt64-at {
			return fmt.Errorf("tensor %s: sizes overflow", t.Name)
		}
		at += t.Size
	}
	header = append(header, '}')
	for len(header)%8 != 0 {
		header = append(header, ' ')
	}
	prefix := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	if _, err := w.Write(append(prefix, header...)); err != nil {
		return err
	}
	for _, t := range tensors {
		counter := &durable.CountingWriter{W: w}
		if err := t.Write(counter); err != nil {
			return err
		}
		if counter.N != t.Size {
			return fmt.Errorf("tensor %s: wrote %d bytes of %d", t.Name, counter.N, t.Size)
		}
	}
	return nil
}
