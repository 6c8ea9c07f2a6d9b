package gotchx

import (
	"archive/zip"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/mgrpo/golden"
)

// pickled returns data.pkl from the pytorch_model.bin of a golden model.
func pickled(t *testing.T, model string) []byte {
	t.Helper()
	archive, err := zip.OpenReader(golden.File(t, "models", filepath.Join(model, "pytorch_model.bin")))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	f, err := archive.Open("pytorch_model/data.pkl")
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestStateDict(t *testing.T) {
	for model, dtype := range map[string]torch.DType{"qwen2-tiny-bin": torch.Float32, "qwen3-bf16-bin": torch.BFloat16} {
		tensors, err := StateDict(pickled(t, model))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.IsSortedFunc(tensors, func(a, b BinTensor) int { return strings.Compare(a.Name, b.Name) }) || len(tensors) < 20 {
			t.Errorf("%s: %d tensors, or unsorted", model, len(tensors))
		}
		for _, tensor := range tensors {
			if tensor.DType != dtype || tensor.Storage == "" || tensor.Size == 0 || len(tensor.Shape) != len(tensor.Stride) {
				t.Errorf("%s: %+v", model, tensor)
			}
		}
	}
	dict, err := StateDict(pickled(t, "qwen2-tiny-bin"))
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]BinTensor{}
	for _, tensor := range dict {
		byName[tensor.Name] = tensor
	}
	head, embed := byName["lm_head.weight"], byName["model.embed_tokens.weight"]
	if head.Storage != embed.Storage || !slices.Equal(head.Shape, []int64{352, 64}) || !slices.Equal(head.Stride, []int64{64, 1}) || head.Size != 352*64 || head.Offset != 0 {
		t.Errorf("tied model: head %+v, embedding %+v", head, embed)
	}
}

func TestStateDictRefused(t *testing.T) {
	valid := pickled(t, "qwen2-tiny-bin")
	for name, c := range map[string]struct{ data, want string }{
		"empty":           {"", ""},
		"text":            {"hello, this is not a pickle", ""},
		"cut short":       {string(valid[:len(valid)/2]), ""},
		"not a dict":      {"\x80\x02K\x01.", "not a state dict"},
		"not tensors":     {"\x80\x02}X\x01\x00\x00\x00aK\x01s.", "maps names to tensors"},
		"other class":     {"\x80\x02cposix\nsystem\n.", "posix.system"},
		"other storage":   {strings.Replace(string(valid), "FloatStorage", "QInt8Storage", 1), "QInt8Storage"},
		"other id":        {"\x80\x02K\x01Q.", "not a storage"},
		"id of no weight": {"\x80\x02(X\x07\x00\x00\x00storageK\x01K\x01K\x01K\x01tQ.", "not a storage"},
	} {
		if _, err := StateDict([]byte(c.data)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
