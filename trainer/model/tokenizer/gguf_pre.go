package tokenizer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/pretokenize"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// ggufPre describes a value of tokenizer.ggml.pre: how a byte-level BPE normalises and splits text. It matches the
// tokenizer.json of the published models that have this value.
type ggufPre struct {
	digits       bool     // split digits into single digits first
	patterns     []string // Split steps, applied in turn; none: the pattern of GPT-2, as part of ByteLevel
	nfc          bool
	ignoreMerges bool
	addBOS       bool // default of add_bos_token
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
	pre   ggufPre
}{
	{"gpt-2 phi-2 mpt exaone4 gigachat a.x-4.0 mellum trillion", ggufPre{}},
	{"smollm starcoder refact codeshell exaone minerva-7b mellum2", ggufPre{digits: true}},
	{"command-r", ggufPre{digits: true, nfc: true}},
	{"qwen2 deepseek-r1-qwen megrez", ggufPre{patterns: []string{pretokenize.PatternQwen2}, nfc: true}},
	{"qwen35", ggufPre{patterns: []string{patternQwen35}, nfc: true}},
	{"stablelm2 hunyuan solar-open grok-2", ggufPre{patterns: []string{pretokenize.PatternQwen2}}},
	{"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2", ggufPre{patterns: []string{pretokenize.PatternLlama3}, ignoreMerges: true, addBOS: true}},
	{"glm4 chatglm-bpe dbrx smaug-bpe", ggufPre{patterns: []string{pretokenize.PatternLlama3}}},
	{"tekken", ggufPre{patterns: []string{pretokenize.PatternTekken}, ignoreMerges: true, addBOS: true}},
	{"gpt-4o llama4 kanana2 minimax-m2", ggufPre{patterns: []string{pretokenize.PatternO200k}}},
	{"deepseek-v3 hunyuan-dense", ggufPre{patterns: []string{pretokenize.PatternDigits3, pretokenize.PatternCJK, pretokenize.PatternDeepSeek}}},
	{"seed-coder", ggufPre{patterns: []string{patternSeedCoder}}},
	{"bailingmoe bailingmoe2 llada-moe", ggufPre{patterns: []string{patternBailing}}},
}

// ggufPreNamed returns the kind of a value of tokenizer.ggml.pre.
func ggufPreNamed(name string) (ggufPre, error) {
	var known []string
	for _, p := range ggufPres {
		names := strings.Fields(p.names)
		if slices.Contains(names, name) {
			return p.pre, nil
		}
		known = append(known, names...)
	}
	slices.Sort(known)
	return ggufPre{}, fmt.Errorf("%spre is %q: the supported ones are %s", ggufPrefix, name, strings.Join(known, ", "))
}

func (p ggufPre) preTokenizer() *ordered.Object {
	steps := []any{}
	if p.digits {
		steps = append(steps, ordered.NewObject("type", "Digits", "individual_digits", true))
	}
	for _, pattern := range p.patterns {
		steps = append(steps, ordered.NewObject("type", "Split", "pattern", ordered.NewObject("Regex", pattern),
			"behavior", "Isolated", "invert", false))
	}
	steps = append(steps, byteLevelJSON(len(p.patterns) == 0))
	return ordered.NewObject("type", "Sequence", "pretokenizers", steps)
}

func byteLevelJSON(useRegex bool) *ordered.Object {
	return ordered.NewObject("type", "ByteLevel", "add_prefix_space", false, "trim_offsets", false, "use_regex", useRegex)
}
