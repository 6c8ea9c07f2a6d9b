package golden

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// kinds of goldens that are models with their expected numbers.
var modelKinds = []string{"models", "families"}

// Models lists the folders of golden models, those with an expected.json: below "models" and "families". Without any it
// skips or fails as Dir does.
func Models(t testing.TB) (folders []string) {
	t.Helper()
	for _, kind := range modelKinds {
		found, err := filepath.Glob(filepath.Join(root(), kind, "*", "expected.json"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			folders = append(folders, filepath.Dir(f))
		}
	}
	if len(folders) == 0 {
		File(t, modelKinds[0], "CASE/expected.json")
	}
	return folders
}

// InSafetensors drops the folders of Models whose weights are pickled: those are loaded through gotch.
func InSafetensors(folders []string) []string { return have(folders, "pytorch_model.bin", false) }

// Computed drops the folders of Models that have checksums of the weights alone, and not what the model computes.
func Computed(folders []string) []string { return have(folders, "expected.safetensors", true) }

// have keeps the folders that have a file, or those that lack it.
func have(folders []string, file string, has bool) []string {
	return slices.DeleteFunc(slices.Clone(folders), func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, file))
		return (err == nil) != has
	})
}

// CountModels is Count for each kind of model, with `each` cases a folder.
func CountModels(what string, folders []string, each int) {
	cases := map[string]int{}
	for _, dir := range folders {
		cases[filepath.Base(filepath.Dir(dir))] += each
	}
	for _, kind := range modelKinds {
		if cases[kind] > 0 {
			Count(kind+"/"+what, cases[kind])
		}
	}
}
