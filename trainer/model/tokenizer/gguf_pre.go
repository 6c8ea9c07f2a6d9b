package tokenizer

import (
	"maps"
	"slices"
	"strings"

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

var ggufPres = func() map[string]ggufPre {
	pres := map[string]ggufPre{}
	add := func(names string, pre ggufPre) {
		for name := range strings.FieldsSeq(names) {
			pres[name] = pre
		}
	}
	add("gpt-2 phi-2 mpt exaone4 gigachat a.x-4.0 mellum trillion", ggufPre{})
	add("smollm starcoder refact codeshell exaone minerva-7b mellum2", ggufPre{digits: true})
	add("command-r", ggufPre{digits: true, nfc: true})
	add("qwen2 deepseek-r1-qwen megrez", ggufPre{patterns: []string{patternQwen2}, nfc: true})
	add("qwen35", ggufPre{patterns: []string{patternQwen35}, nfc: true})
	add("stablelm2 hunyuan solar-open grok-2", ggufPre{patterns: []string{patternQwen2}})
	add("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2", ggufPre{patterns: []string{patternLlama3}, ignoreMerges: true, addBOS: true})
	add("glm4 chatglm-bpe dbrx smaug-bpe", ggufPre{patterns: []string{patternLlama3}})
	add("tekken", ggufPre{patterns: []string{patternTekken}, ignoreMerges: true, addBOS: true})
	add("gpt-4o llama4 kanana2 minimax-m2", ggufPre{patterns: []string{patternO200k}})
	add("deepseek-v3 hunyuan-dense", ggufPre{patterns: []string{patternDigits3, patternCJK, patternDeepSeek}})
	add("seed-coder", ggufPre{patterns: []string{patternSeedCoder}})
	add("bailingmoe bailingmoe2 llada-moe", ggufPre{patterns: []string{patternBailing}})
	return pres
}()

// ggufPreNames returns the supported values, for an error.
func ggufPreNames() string { return strings.Join(slices.Sorted(maps.Keys(ggufPres)), ", ") }

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
