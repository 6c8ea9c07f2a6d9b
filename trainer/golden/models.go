package golden

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// modelKinds are the kinds of goldens that are models with their expected numbers. "gguf-2026" has a GGUF file in place
// of config.json and weights.
var modelKinds = []string{"models", "families", "families-2026", "gguf-2026"}

// Models lists the folders of golden models, which contain an expected.json. If there are none, it skips or fails the
// test as Dir does. With $MGRPO_GOLDENS set, it omits models of other families than the given ones and prints their
// names.
func Models(t testing.TB, families []string) (folders []string) {
	t.Helper()
	for _, kind := range modelKinds {
		found, err := filepath.Glob(filepath.Join(root(), kind, "*", "expected.json"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			dir := filepath.Dir(f)
			if family := familyOf(t, dir); family != "" && !slices.Contains(families, family) {
				if _, foreign := os.LookupEnv(Env); !foreign {
					t.Fatalf("golden: %s/%s: model_type %s is not supported", kind, filepath.Base(dir), family)
				}
				fmt.Printf("golden: %s/%s: absent from the supported families: model_type %s\n", kind, filepath.Base(dir), family)
				continue
			}
			folders = append(folders, dir)
		}
	}
	if len(folders) == 0 {
		File(t, modelKinds[0], "CASE/expected.json")
	}
	return folders
}

// familyOf returns the model_type of a folder's config.json, or of the text model in a wrapped model, or "" if there is
// no config.json.
func familyOf(t testing.TB, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "config.json")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	var config struct {
		Type string `json:"model_type"`
		Text *struct {
			Type string `json:"model_type"`
		} `json:"text_config"`
	}
	if ReadJSON(t, path, &config); config.Text != nil {
		return config.Text.Type
	}
	return config.Type
}

// Adapters lists the folders of golden LoRA adapters.
func Adapters(t testing.TB) (folders []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(Dir(t, "lora"), "*", "expected.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("golden: no adapters: %v", err)
	}
	for _, f := range files {
		folders = append(folders, filepath.Dir(f))
	}
	return folders
}

// Base returns the folder of the model that a golden adapter changes.
func Base(t testing.TB, adapter string) string {
	t.Helper()
	var config struct {
		Base string `json:"base_model_name_or_path"`
	}
	ReadJSON(t, filepath.Join(adapter, "adapter_config.json"), &config)
	return filepath.Join(adapter, config.Base)
}

// Broken is a folder with a checkpoint or an adapter that has a fault.
type Broken struct {
	Name     string
	Must     string     // "load", "refuse", or both with a warning
	Literals [][]string // the message has one of each group
}

// WantNamed fails the test unless the message names the fault.
func (b Broken) WantNamed(t testing.TB, message string) {
	t.Helper()
	for _, group := range b.Literals {
		if !slices.ContainsFunc(group, func(literal string) bool { return strings.Contains(message, literal) }) {
			t.Errorf("%s: %q names none of %q", b.Name, message, group)
		}
	}
}

// Checkpoint returns the path to open for a golden folder's model: the folder, or the GGUF file in it.
func Checkpoint(dir string) string {
	if found, err := filepath.Glob(filepath.Join(dir, "*.gguf")); err == nil && len(found) == 1 {
		return found[0]
	}
	return dir
}

// Tolerance returns the largest allowed difference between a golden model's float32 numbers and
// the expected ones. It is `usual` or, if larger, eight times the difference from float64
// measured when the case was made. what is a key of measured_f32_vs_f64 in expected.json.
func Tolerance(t testing.TB, dir, what string, usual float64) float64 {
	t.Helper()
	measured, _ := expected(t, dir)["measured_f32_vs_f64"].(map[string]any)
	value, _ := measured[what].(float64)
	return max(usual, 8*value)
}

// Untrained reports whether a case lists the tensor as one without a gradient. name is its name in any layout of Published.
func Untrained(t testing.TB, dir, name string) bool {
	t.Helper()
	list, _ := expected(t, dir)["tensors_without_gradient"].([]any)
	_, listed := Published(name, func(name string) bool { return slices.Contains(list, any(name)) })
	return listed
}

func expected(t testing.TB, dir string) (object map[string]any) {
	t.Helper()
	ReadJSON(t, filepath.Join(dir, "expected.json"), &object)
	return object
}

// Trained drops the folders of Models without expected numbers for training.
func Trained(t testing.TB, folders []string) []string {
	t.Helper()
	return slices.DeleteFunc(slices.Clone(folders), func(dir string) bool { return expected(t, dir)["adamw"] == nil })
}

// Published returns the name of a tensor in a published folder, where the language model of a wrapper has one of
// several prefixes. It returns the first name that exists. name is the tensor's name in a model with any of these
// layouts.
func Published(name string, there func(name string) bool) (published string, ok bool) {
	names := []string{name}
	for _, prefix := range []string{"model.language_model.", "language_model.model.", "model."} {
		if rest, inside := strings.CutPrefix(name, prefix); inside {
			names = append(names, "model."+rest, "model.language_model."+rest, "language_model.model."+rest)
			break
		}
	}
	if strings.HasSuffix(name, "lm_head.weight") {
		names = append(names, "lm_head.weight", "language_model.lm_head.weight")
	}
	for _, published := range names {
		if there(published) {
			return published, true
		}
	}
	return "", false
}

// InSafetensors drops the folders of Models with pickled weights, which are loaded through gotch.
func InSafetensors(folders []string) []string { return have(folders, "pytorch_model.bin", false) }

// Computed drops the folders of Models that have only checksums of the weights and no results of the model.
func Computed(folders []string) []string { return have(folders, "expected.safetensors", true) }

// have keeps the folders with a file, or, if has is false, those without it.
func have(folders []string, file string, has bool) []string {
	return slices.DeleteFunc(slices.Clone(folders), func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, file))
		return (err == nil) != has
	})
}

// CountModels calls Count for each kind of model, with `each` cases per folder.
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
