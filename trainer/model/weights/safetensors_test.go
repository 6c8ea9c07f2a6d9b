package weights

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// safetensorsBytes builds a file from a header and size bytes of data.
func safetensorsBytes(header string, size int) []byte {
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(file, header...), make([]byte, size)...)
}

func TestSafetensorsHeader(t *testing.T) {
	good := `{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,1],"data_offsets":[4,12]},"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},"e":{"dtype":"F32","shape":[0,7],"data_offsets":[4,4]},"s":{"dtype":"BF16","shape":[],"data_offsets":[12,14]}}   `
	entries, data, err := parseSafetensors(safetensorsBytes(good, 14))
	if err != nil || len(data) != 14 {
		t.Fatal(err)
	}
	var order []string
	for _, e := range entries {
		order = append(order, e.name)
	}
	if fmt.Sprint(order) != "[a e b s]" {
		t.Error(order)
	}
	entry := func(body string) string { return `{"w":{` + body + `}}` }
	for _, c := range []struct {
		header string
		data   int
		want   []string
	}{
		{``, 0, []string{"header"}},
		{`{`, 0, []string{"header"}},
		{` {}`, 0, []string{"header"}},
		{`{} x`, 0, []string{"header", "follows"}},
		{`[]`, 0, []string{"header"}},
		{`{"w":5}`, 0, []string{"w"}},
		{`{}`, 3, []string{"3 bytes", "do not belong to any tensor"}},
		{`{"__metadata__":{"a":1}}`, 0, []string{"header"}},
		{entry(`"dtype":"F32","shape":[1]`), 4, []string{"w", "data_offsets"}},
		{entry(`"dtype":"F32","shape":[1],"data_offsets":[0]`), 4, []string{"w", "data_offsets"}},
		{entry(`"dtype":"F32","shape":[1],"data_offsets":[0,4,8]`), 4, []string{"w", "data_offsets"}},
		{entry(`"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]`), 4, []string{"w", "twice"}},
		{entry(`"DType":"F32","shape":[1],"data_offsets":[0,4]`), 4, []string{"w", "DType"}},
		{entry(`"dtype":"F33","shape":[1],"data_offsets":[0,4]`), 4, []string{"w", "F33"}},
		{entry(`"dtype":"f32","shape":[1],"data_offsets":[0,4]`), 4, []string{"w", "f32"}},
		{entry(`"dtype":"F32","shape":[1.0],"data_offsets":[0,4]`), 4, []string{"w", "1.0"}},
		{entry(`"dtype":"F32","shape":[1e0],"data_offsets":[0,4]`), 4, []string{"w", "1e0"}},
		{entry(`"dtype":"F32","shape":[-0],"data_offsets":[0,0]`), 0, []string{"w", "-0"}},
		{entry(`"dtype":"F32","shape":[18446744073709551617],"data_offsets":[0,4]`), 4, []string{"w", "shape"}},
		{entry(`"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,4]`), 4, []string{"w", "shape", "overflow"}},
		// 2^58 + 1 elements of 64 bits.
		{entry(`"dtype":"F64","shape":[288230376151711745],"data_offsets":[0,64]`), 64, []string{"w", "shape", "overflow"}},
		{entry(`"dtype":"F32","shape":[2],"data_offsets":[0,4]`), 4, []string{"w", "8 bytes"}},
		{entry(`"dtype":"F32","shape":[1],"data_offsets":[4,0]`), 4, []string{"w", "reversed"}},
		{entry(`"dtype":"F32","shape":[1],"data_offsets":[4,8]`), 8, []string{"w", "hole"}},
		{entry(`"dtype":"F32","shape":[2],"data_offsets":[0,8]`), 7, []string{"w", "past the end"}},
		{entry(`"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]`), 4, []string{"w", "shape"}},
		{`{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8, []string{"w", "twice"}},
		{`{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8, []string{"x", "overlap"}},
	} {
		_, _, err := parseSafetensors(safetensorsBytes(c.header, c.data))
		golden.WantError(t, err, c.want...)
	}
	_, _, err = parseSafetensors([]byte{255, 255, 255, 255, 255, 255, 255, 255, '{', '}'})
	golden.WantError(t, err, "header")
}

// TestSafetensorsMemory reads headers that consist only of structure: memory must stay below a small multiple of the file's size.
func TestSafetensorsMemory(t *testing.T) {
	for name, header := range map[string]string{
		"arrays":  strings.Repeat("[", maxHeaderBytes-1),
		"objects": strings.Repeat(`{"a":`, maxHeaderBytes/5),
		"string":  `{"` + strings.Repeat("a", maxHeaderBytes-2),
		"meta":    `{"__metadata__":{"a":"` + strings.Repeat("a", maxHeaderBytes-40) + `"}}`,
		"spaces":  strings.Repeat(" ", maxHeaderBytes),
	} {
		before := allocated()
		_, _, err := parseSafetensors(safetensorsBytes(header, 0))
		if used := allocated() - before; used > 150<<20 {
			t.Errorf("%s: %d MiB for a header of %d MiB", name, used>>20, len(header)>>20)
		}
		if name != "meta" && err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestSafetensorsTypes(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, configFile), []byte(`{"model_type":"llama"}`))
	writeFile(t, filepath.Join(dir, safetensorsFile), safetensorsBytes(`{"w":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}`, 8))
	_, err := Open(dir)
	golden.WantError(t, err, dir, safetensorsFile, "w", "I64")
}

func FuzzSafetensors(f *testing.F) {
	f.Add(safetensorsBytes(`{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8))
	f.Add(safetensorsBytes(`{"__metadata__":{"a":"b"},"w":{"dtype":"BF16","shape":[0],"data_offsets":[0,0]}}  `, 0))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, '{'})
	f.Fuzz(func(t *testing.T, file []byte) {
		entries, data, err := parseSafetensors(file)
		if err != nil {
			return
		}
		var total int64
		for _, e := range entries {
			total += int64(len(data[e.begin:e.end]))
			if _, err := newTensor(e.shape, DType(e.dtype), data[e.begin:e.end]); err != nil && encodings[DType(e.dtype)].blockLen != 0 {
				t.Fatal(err)
			}
		}
		if total != int64(len(data)) {
			t.Fatalf("tensors take %d of %d bytes", total, len(data))
		}
	})
}
