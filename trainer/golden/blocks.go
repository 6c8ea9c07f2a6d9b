package golden

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"testing"
)

// Blocks are random blocks of a quantisation, and their values according to the gguf package (testdata/quant/make.py).
type Blocks struct {
	Data   []byte
	Values []float32
}

// QuantisedBlocks reads the blocks of each type, by its name in GGUF.
func QuantisedBlocks(t testing.TB) map[string]Blocks {
	t.Helper()
	var file map[string]struct{ Blocks, Float32 string }
	Read(t, "quant", "blocks.json", &file)
	all := map[string]Blocks{}
	for name, written := range file {
		data, err := hex.DecodeString(written.Blocks)
		if err != nil || len(data) == 0 {
			t.Fatalf("%s: %d bytes, %v", name, len(data), err)
		}
		bits, err := hex.DecodeString(written.Float32)
		values := make([]float32, len(bits)/4)
		if err == nil {
			err = binary.Read(bytes.NewReader(bits), binary.LittleEndian, values)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all[name] = Blocks{data, values}
	}
	return all
}
