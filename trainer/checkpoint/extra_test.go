package checkpoint

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func TestExtraFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"tokenizer.json", "chat_template.jinja", "model.safetensors", "notes.txt"} {
		writeFile(t, filepath.Join(dir, name), []byte(name))
	}
	got, err := ExtraFiles(dir)
	want := map[string][]byte{"tokenizer.json": []byte("tokenizer.json"), "chat_template.jinja": []byte("chat_template.jinja")}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v %v", got, err)
	}
	if err := os.Mkdir(filepath.Join(dir, "vocab.json"), 0o777); err != nil {
		t.Fatal(err)
	}
	_, err = ExtraFiles(dir)
	wantError(t, err, dir, "vocab.json")
}
