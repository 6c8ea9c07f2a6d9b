package golden

import (
	"os"
	"path/filepath"
	"testing"
)

// Module returns a folder with a golden model as a TorchScript policy: policy.pt and
// config.json, which bench/goldens/torchscript.py makes, and the golden model's weights.
func Module(t testing.TB, name string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	for file, kind := range map[string]string{"policy.pt": "torchscript", "config.json": "torchscript", "model.safetensors": "models"} {
		data, err := os.ReadFile(File(t, kind, filepath.Join(name, file)))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, file), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}
