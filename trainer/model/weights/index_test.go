package weights

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

func TestIndexRefused(t *testing.T) {
	for _, c := range []struct {
		json string
		want []string
	}{
		{`x`, []string{"json: invalid character"}},
		{`{}`, []string{"weight_map"}},
		{`{"weight_map":[]}`, []string{"object"}},
		{`{"weight_map":{}}`, []string{"weight_map"}},
		{`{"weight_map":{"w":5}}`, []string{"w", "string"}},
		{`{"weight_map":{"w":"/a.safetensors"}}`, []string{"/a.safetensors", "absolute"}},
		{`{"weight_map":{"w":"C:\\a.safetensors"}}`, []string{"absolute"}},
		{`{"weight_map":{"w":"\\\\host\\a.safetensors"}}`, []string{"absolute"}},
		{`{"weight_map":{"w":"../../a.safetensors"}}`, []string{"../../a.safetensors", "leave"}},
		{`{"weight_map":{"w":"b/../../a.safetensors"}}`, []string{"leave"}},
		{`{"weight_map":{"w":""}}`, []string{".safetensors"}},
		{`{"weight_map":{"w":"a.bin"}}`, []string{"a.bin", ".safetensors"}},
		{`{"weight_map":{"w":"a.safetensors","w":"b.safetensors"}}`, []string{"w", "twice"}},
		{`{"weight_map":{"w":"a.safetensors"}}{}`, []string{"follows"}},
	} {
		_, err := parseIndex([]byte(c.json), ".safetensors")
		golden.WantError(t, err, c.want...)
	}
}

// TestIndexDisagrees edits the index of a sharded golden: the contents of the shards have priority.
func TestIndexDisagrees(t *testing.T) {
	source := filepath.Join("..", "..", "..", "testdata", "models", "qwen2-untied")
	index, err := os.ReadFile(filepath.Join(source, safetensorsIndex))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, note, refusal string }{
		{`"model.norm.weight": "model-00001`, `"model.norm.weight": "model-00002`, "", ""},
		{`"model.norm.weight": "model-00002`, `"model.norm.weight": "model-00003`, "", ""},
		{`"model.norm.weight": "model-00003`, `"model.norm.weight": "model-00001`, "", ""},
		{`"lm_head.weight"`, `"lm_head.wait"`, "lm_head.wait", ""},
		{`"lm_head.weight": "model-00001-of-00003.safetensors"`, `"lm_head.weight": "model-00009-of-00003.safetensors"`, "", "model-0000"},
		{"\"lm_head.weight\": \"model-00001-of-00003.safetensors\",\n", "", "lm_head.weight", ""},
	} {
		edited := strings.Replace(string(index), c.old, c.new, 1)
		if edited == string(index) {
			continue // the golden has the tensor in another shard
		}
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(source)); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, safetensorsIndex)); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, safetensorsIndex), []byte(edited))
		notes, err := openAndCheck(dir)
		if c.refusal != "" {
			golden.WantError(t, err, dir, safetensorsIndex, c.refusal)
		} else if err != nil || !strings.Contains(strings.Join(notes, "\n"), c.note) {
			t.Errorf("%s -> %s: %v, notes %q", c.old, c.new, err, notes)
		}
	}
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":5},"weight_map":{"w":"a.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"w":"../../a.safetensors"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		weightMap, err := parseIndex(data, ".safetensors")
		if err != nil {
			return
		}
		for tensor, shard := range weightMap {
			if !filepath.IsLocal(shard) || filepath.Base(shard) != shard {
				t.Fatalf("%q: %q leaves the folder", tensor, shard)
			}
		}
	})
}
