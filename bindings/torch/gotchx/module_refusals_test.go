package gotchx_test

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// folderOf returns a folder with the config.json of a module with these parameters, and with their values, which are 0.
func folderOf(t *testing.T, head string, parameters map[string][]int64) string {
	t.Helper()
	folder := t.TempDir()
	text, err := json.Marshal(map[string]any{"model_type": "torchscript", "vocab_size": parameters[head][0], "hidden_size": parameters[head][1], "max_position_embeddings": 64,
		"head": head, "parameters": parameters})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "config.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	var tensors []weights.OutTensor
	for name, shape := range parameters {
		size := int64(4)
		for _, n := range shape {
			size *= n
		}
		tensors = append(tensors, weights.OutTensor{Name: name, DType: string(weights.F32), Shape: shape, Size: size, Write: func(w io.Writer) error {
			_, err := w.Write(make([]byte, size))
			return err
		}})
	}
	file, err := os.Create(filepath.Join(folder, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := weights.WriteSafetensors(file, tensors); err != nil {
		t.Fatal(err)
	}
	return folder
}

// A module is refused unless config.json lists exactly its parameters with their shapes, each with values of its own.
func TestModuleParametersRefused(t *testing.T) {
	matrix, vector := []int64{4, 2}, []int64{2}
	for _, c := range []struct {
		name, module, head string
		parameters         map[string][]int64
		want               string
	}{
		{"as listed", "policy.pt", "embedding", map[string][]int64{"embedding": matrix, "bias": vector}, ""},
		{"one parameter under two names", "tied.pt", "head", map[string][]int64{"embedding": matrix, "head": matrix, "bias": vector},
			"parameters embedding and head of the module share their values: give the module one of them, and name it as head if it is the output head"},
		{"not listed", "policy.pt", "embedding", map[string][]int64{"embedding": matrix}, "the module has a parameter bias, which config.json does not list"},
		{"second name not listed", "tied.pt", "embedding", map[string][]int64{"embedding": matrix, "bias": vector}, "the module has a parameter head, which config.json does not list"},
		{"not in the module", "policy.pt", "head", map[string][]int64{"embedding": matrix, "head": matrix, "bias": vector}, "the module has no parameter head, which config.json lists"},
		{"another shape", "policy.pt", "embedding", map[string][]int64{"embedding": matrix, "bias": {1, 2}}, "parameter bias of the module is float32 [2]; config.json requires float32 [1 2]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join("testdata", c.module)
			_, err := load(t, folderOf(t, c.head, c.parameters), path, "cpu")
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), path+": "+c.want)):
				t.Errorf("%v; want %s: %s", err, path, c.want)
			}
		})
	}
}
