package convert

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/pretokenize"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// PreTokenizer describes a value of tokenizer.ggml.pre: how a byte-level BPE normalises and splits text. It matches the
// tokenizer.json of the published models that have this value.
type PreTokenizer struct {
	Digits       bool     // split digits into single digits first
	Patterns     []string // Split steps, applied in turn; none: the pattern of GPT-2, as part of ByteLevel
	NFC          bool
	IgnoreMerges bool
	AddBOS       bool // default of add_bos_token
}

// Further patterns of published files. There is no hand-written splitter for them.
const (
	patternQwen35    = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternSeedCoder = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^` + "\r\n" + `\p{L}\p{N}]?\p{L}+|\p{N}{1}|` +
		` ?[^\s\p{L}\p{N}` + "\r\n" + `]+|\s*[` + "\r\n" + `]+|\s+(?!\S)|\s+`
	patternBailing = `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`
)

// ggufPres lists the kinds with their values of tokenizer.ggml.pre. The first value of a kind is written; the others mean the
// same to programs that read the vocabulary.
var ggufPres = []struct {
	names string
	pre   PreTokenizer
}{
	{"gpt-2 phi-2 mpt exaone4 gigachat a.x-4.0 mellum trillion", PreTokenizer{}},
	{"smollm starcoder refact codeshell exaone minerva-7b mellum2", PreTokenizer{Digits: true}},
	{"command-r", PreTokenizer{Digits: true, NFC: true}},
	{"qwen2 deepseek-r1-qwen megrez", PreTokenizer{Patterns: []string{pretokenize.PatternQwen2}, NFC: true}},
	{"qwen35", PreTokenizer{Patterns: []string{patternQwen35}, NFC: true}},
	{"stablelm2 hunyuan solar-open grok-2", PreTokenizer{Patterns: []string{pretokenize.PatternQwen2}}},
	{"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2", PreTokenizer{Patterns: []string{pretokenize.PatternLlama3}, IgnoreMerges: true, AddBOS: true}},
	{"glm4 chatglm-bpe dbrx smaug-bpe", PreTokenizer{Patterns: []string{pretokenize.PatternLlama3}}},
	{"tekken", PreTokenizer{Patterns: []string{pretokenize.PatternTekken}, IgnoreMerges: true, AddBOS: true}},
	{"gpt-4o llama4 kanana2 minimax-m2", PreTokenizer{Patterns: []string{pretokenize.PatternO200k}}},
	{"deepseek-v3 hunyuan-dense", PreTokenizer{Patterns: []string{pretokenize.PatternDigits3, pretokenize.PatternCJK, pretokenize.PatternDeepSeek}}},
	{"seed-coder", PreTokenizer{Patterns: []string{patternSeedCoder}}},
	{"bailingmoe bailingmoe2 llada-moe", PreTokenizer{Patterns: []string{patternBailing}}},
}

// preTokenizerNamed returns the kind of a value of tokenizer.ggml.pre.
func preTokenizerNamed(name string) (PreTokenizer, error) {
	var known []string
	for _, p := range ggufPres {
		names := strings.Fields(p.names)
		if slices.Contains(names, name) {
			return p.pre, nil
		}
		known = append(known, names...)
	}
	slices.Sort(known)
	return PreTokenizer{}, fmt.Errorf("%spre is %q: the supported ones are %s", GGUFPrefix, name, strings.Join(known, ", "))
}

// Name returns the value of tokenizer.ggml.pre that is written for p, whatever its AddBOS. ok reports whether there is one.
func (p PreTokenizer) Name() (name string, ok bool) {
	for _, kind := range ggufPres {
		p.AddBOS = kind.pre.AddBOS
		if reflect.DeepEqual(kind.pre, p) {
			name, _, _ = strings.Cut(kind.names, " ")
			return name, true
		}
	}
	return "", false
}

// object returns the component of tokenizer.json.
func (p PreTokenizer) object() *ordered.Object {
	steps := []any{}
	if p.Digits {
		steps = append(steps, ordered.NewObject("type", "Digits", "individual_digits", true))
	}
	for _, pattern := range p.Patterns {
		steps = append(steps, ordered.NewObject("type", "Split", "pattern", ordered.NewObject("Regex", pattern),
			"behavior", "Isolated", "invert", false))
	}
	steps = append(steps, byteLevelJSON(len(p.Patterns) == 0))
	return ordered.NewObject("type", "Sequence", "pretokenizers", steps)
}

func byteLevelJSON(useRegex bool) *ordered.Object {
	return ordered.NewObject("type", "ByteLevel", "add_prefix_space", false, "trim_offsets", false, "use_regex", useRegex)
}
