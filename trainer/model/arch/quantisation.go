package arch

import (
	"slices"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

// Supported methods of quantisation.
const (
	QuantFP8        = "fp8"
	QuantMXFP4      = "mxfp4"
	QuantCompressed = "compressed-tensors"
)

// Quantisation describes how a Hugging Face folder stores matrices: quantization_config in its config.json. The trainer
// widens them while it reads, and writes a config.json without this section.
type Quantisation struct {
	Method string // quant_method

	// BlockRows × BlockCols values have one scale (weight_block_size, in compressed-tensors block_structure). Blocks begin at the
	// first row and column, so the last ones may be smaller. 0: a matrix has one scale, or each row has one.
	BlockRows, BlockCols int
}

const maxBlock = 1 << 20

// readQuantisation reads how the folder's matrices are stored. It returns nil if they are plain numbers.
func readQuantisation(k *keys) *Quantisation {
	if k.values["quantization"] != nil {
		k.fail("quantization: folders that MLX has quantised are not supported; %s", unquantised)
	}
	in := k.section("quantization_config")
	if in == nil {
		in = k.section("compression_config") // its older name in compressed-tensors
	}
	if in == nil {
		return nil
	}
	q := &Quantisation{}
	in.text("quant_method", &q.Method)
	switch q.Method {
	case QuantFP8:
		readBlocks(in, "weight_block_size", q)
		refuseOther(in, "fmt", "e4m3")
	case QuantMXFP4:
	case QuantCompressed:
		readCompressed(in, q)
	default:
		refuseMethod(in, q.Method)
	}
	k.fold(in)
	return q
}

// unquantised is the advice in errors about a folder that cannot be read.
const unquantised = "use the checkpoint that was quantised, or a GGUF file of it"

// refuseMethod refuses a method by its name. Old folders of bitsandbytes have none.
func refuseMethod(k *keys, method string) {
	if method == "" && (k.values["load_in_4bit"] == true || k.values["load_in_8bit"] == true) {
		method = "bitsandbytes"
	}
	if method == "" {
		k.fail("quant_method is missing: only %s, %s and FP8 of %s are supported; %s", QuantFP8, QuantMXFP4, QuantCompressed, unquantised)
		return
	}
	k.fail("quant_method %q is not supported: only %s, %s and FP8 of %s are; %s", strictjson.Brief(method), QuantFP8, QuantMXFP4, QuantCompressed, unquantised)
}

// refuseOther refuses every value of a key except the given one and null.
func refuseOther(k *keys, key string, wanted any) {
	if v := k.values[key]; v != nil && v != wanted {
		k.fail("%s %s is not supported: only %s", key, strictjson.Show(v), strictjson.Show(wanted))
	}
}

// readBlocks reads the rows and columns of blocks. If the key is null or absent, q keeps its values.
func readBlocks(k *keys, key string, q *Quantisation) {
	sizes := k.integers(key)
	if len(sizes) == 0 {
		return
	}
	if len(sizes) != 2 || slices.Min(sizes) < 1 || slices.Max(sizes) > maxBlock {
		k.fail("%s is %s: must be two sizes from 1 to %d", key, strictjson.Show(k.values[key]), maxBlock)
		return
	}
	if q.BlockRows != 0 && (q.BlockRows != sizes[0] || q.BlockCols != sizes[1]) {
		k.fail("%s differs from the value in another group", key)
	}
	q.BlockRows, q.BlockCols = sizes[0], sizes[1]
}

// readCompressed reads the groups of compressed-tensors, all of which must store weights as FP8.
func readCompressed(k *keys, q *Quantisation) {
	for _, key := range []string{"sparsity_config", "transform_config"} {
		object, _ := k.values[key].(map[string]any)
		if dense := key == "sparsity_config" && object["format"] == "dense"; len(object) > 0 && !dense { // dense: it compresses nothing
			k.fail("%s is not supported; %s", key, unquantised)
		}
	}
	format := "float-quantized"
	k.text("format", &format)
	if format != "float-quantized" && format != "naive-quantized" {
		k.fail("format %q is not supported: only float-quantized, which is FP8; %s", strictjson.Brief(format), unquantised)
	}
	groups := k.section("config_groups")
	if groups == nil {
		k.fail("config_groups is missing")
		return
	}
	for name := range groups.values {
		group := groups.section(name)
		if group == nil {
			continue
		}
		readCompressedWeights(group, q)
		groups.fold(group)
	}
	k.fold(groups)
}

// readCompressedWeights reads the weights of a group.
func readCompressedWeights(k *keys, q *Quantisation) {
	in := k.section("weights")
	if in == nil {
		return
	}
	var kind, strategy string
	bits, symmetric := 0, true
	in.text("type", &kind)
	in.integer("num_bits", &bits)
	in.boolean("symmetric", &symmetric)
	if kind != "float" || bits != 8 || !symmetric {
		in.fail("type %q of %d bits (symmetric: %v) is not supported: only symmetric float of 8; %s", strictjson.Brief(kind), bits, symmetric, unquantised)
	}
	in.text("strategy", &strategy)
	if !slices.Contains([]string{"tensor", "channel", "block"}, strategy) {
		in.fail("strategy %q is not supported: only tensor, channel and block; %s", strictjson.Brief(strategy), unquantised)
	}
	if strategy == "block" {
		in.require("block_structure")
		readBlocks(in, "block_structure", q)
	}
	k.fold(in)
}
