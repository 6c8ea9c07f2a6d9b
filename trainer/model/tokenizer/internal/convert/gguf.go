// Package convert builds tokenizer.json and tokenizer_config.json from other formats: the metadata of GGUF files, and
// SentencePiece's tokenizer.model.
package convert

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/format"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// GGUFPrefix is the prefix of the tokenizer's metadata keys.
const GGUFPrefix = "tokenizer.ggml."

// Token types of tokenizer.ggml.token_type. Encoding treats tokens of the undefined type as normal ones.
const (
	TokenUndefined   = 0
	TokenNormal      = 1
	TokenUnknown     = 2
	TokenControl     = 3
	TokenUserDefined = 4
	TokenUnused      = 5
	TokenByte        = 6
)

// noID stands for a special token that a file does not have.
const noID = -1

// FromGGUF builds tokenizer.json and tokenizer_config.json from the metadata of a GGUF file, whose values are string, bool,
// int64, []string, []int64 and []float64. It supports byte-level BPE (model "gpt2") with the pre-tokenizers of ggufPres, and
// BPE of the SentencePiece kind ("llama", "gemma4").
func FromGGUF(meta map[string]any) (tokenizer, config *ordered.Object, err error) {
	g := ggufTokenizer{meta: meta}
	return g.objects()
}

// ggufTokenizer reads the metadata. It keeps the first error in err.
type ggufTokenizer struct {
	meta   map[string]any
	tokens []string
	types  []int64
	ids    map[string]int64 // of special tokens, by key, such as bos_token_id
	err    error

	firstOnly bool // the prefix is put before the text only, not also after added tokens
}

func (g *ggufTokenizer) fail(format string, args ...any) {
	if g.err == nil {
		g.err = fmt.Errorf(format, args...)
	}
}

// objects returns tokenizer.json and tokenizer_config.json.
func (g *ggufTokenizer) objects() (tokenizer, config *ordered.Object, err error) {
	model := ggufValue[string](g, "model")
	if g.readTokens(); g.err != nil {
		return nil, nil, g.err
	}
	switch model {
	case "gpt2":
		tokenizer, config = g.byteLevel()
	case "llama", "gemma4":
		tokenizer, config = g.sentencePiece(model)
	default:
		g.fail("%smodel is %q: the supported ones are gpt2, llama and gemma4", GGUFPrefix, model)
	}
	return tokenizer, config, g.err
}

// byteLevel returns tokenizer.json and tokenizer_config.json of the model "gpt2".
func (g *ggufTokenizer) byteLevel() (tokenizer, config *ordered.Object) {
	pre, err := preTokenizerNamed(ggufValue[string](g, "pre"))
	if err != nil {
		g.fail("%w", err)
	}
	config = g.config(nil)
	return g.tokenizer(pre, config), config
}

func ggufValue[T any](g *ggufTokenizer, key string) T {
	v, ok := g.meta[GGUFPrefix+key]
	t, isT := v.(T)
	switch {
	case !ok:
		g.fail("%s%s is absent", GGUFPrefix, key)
	case !isT:
		g.fail("%s%s is of type %T, not %T", GGUFPrefix, key, v, t)
	}
	return t
}

// ggufOptional returns the value of a key, or the given default if the key is absent.
func ggufOptional[T any](g *ggufTokenizer, key string, absent T) T {
	if _, ok := g.meta[GGUFPrefix+key]; !ok {
		return absent
	}
	return ggufValue[T](g, key)
}

func (g *ggufTokenizer) readTokens() {
	g.tokens, g.types = ggufValue[[]string](g, "tokens"), slices.Clone(ggufValue[[]int64](g, "token_type"))
	for i, kind := range g.types {
		if kind == TokenUndefined {
			g.types[i] = TokenNormal
		}
	}
	if len(g.types) != len(g.tokens) || len(g.tokens) > format.MaxID {
		g.fail("%d tokens and %d token types: the numbers must be equal and at most %d", len(g.tokens), len(g.types), format.MaxID)
	}
}

// config returns tokenizer_config.json. absent holds the ids of special tokens that the metadata does not name. An id beyond
// the list of tokens, such as -1 as an unsigned number, counts as absent.
func (g *ggufTokenizer) config(absent map[string]int64) *ordered.Object {
	g.ids = map[string]int64{}
	config := ordered.NewObject("tokenizer_class", "PreTrainedTokenizerFast", "clean_up_tokenization_spaces", false)
	for _, n := range []struct{ key, name string }{{"bos_token_id", "bos_token"}, {"eos_token_id", "eos_token"},
		{"unknown_token_id", "unk_token"}, {"padding_token_id", "pad_token"}} {
		otherwise, ok := absent[n.key]
		if !ok {
			otherwise = noID
		}
		id := ggufOptional(g, n.key, otherwise)
		if id >= int64(len(g.tokens)) {
			id = otherwise
		}
		if id >= 0 && id < int64(len(g.tokens)) {
			config.Set(n.name, g.tokens[id])
			g.ids[n.key] = id
		}
	}
	return config
}

func (g *ggufTokenizer) tokenizer(pre PreTokenizer, config *ordered.Object) *ordered.Object {
	vocab, added := g.vocab(false)
	unk, hasUnk := config.Get("unk_token")
	model := ordered.NewObject("type", "BPE", "dropout", nil, "unk_token", unk, "continuing_subword_prefix", nil,
		"end_of_word_suffix", nil, "fuse_unk", hasUnk, "byte_fallback", false, "ignore_merges", pre.IgnoreMerges,
		"vocab", vocab, "merges", g.merges())
	var normalizer any
	if pre.NFC {
		normalizer = ordered.NewObject("type", "NFC")
	}
	return format.Tokenizer(added, normalizer, pre.object(), g.postProcessor(pre.AddBOS, config), byteLevelJSON(true), model)
}

// vocab splits the tokens into vocabulary and added tokens. An added token with an id below the last normal token is also
// put into the vocabulary, because transformers would otherwise give it another id. Unused tokens are left out: they only
// fill rows of the embedding. Only vocabularies of the SentencePiece kind have an unknown token, tokens for bytes, and merges of
// user-defined tokens, which are therefore in the vocabulary.
func (g *ggufTokenizer) vocab(sentencePiece bool) (vocab *ordered.Object, added []any) {
	last := -1
	for id, kind := range g.types {
		if kind == TokenNormal || sentencePiece && kind == TokenUserDefined {
			last = id
		}
	}
	vocab, added = &ordered.Object{}, []any{}
	for id, text := range g.tokens {
		isAdded := false
		switch g.types[id] {
		case TokenNormal:
		case TokenControl, TokenUserDefined:
			added = append(added, format.AddedToken(int64(id), text, g.types[id] == TokenControl))
			isAdded = true
		case TokenUnused:
			continue
		case TokenByte, TokenUnknown:
			if !sentencePiece {
				g.fail("token %d, %.60q, has the type %d, which byte-level BPE does not have", id, text, g.types[id])
			}
			if isAdded = g.types[id] == TokenUnknown; isAdded {
				added = append(added, format.AddedToken(int64(id), text, true))
			}
		default:
			g.fail("token %d, %.60q, has the unknown type %d", id, text, g.types[id])
		}
		if isAdded && id > last {
			continue
		}
		if _, again := vocab.Get(text); again {
			g.fail("token %d, %.60q, occurs twice", id, text)
		}
		vocab.Set(text, int64(id))
	}
	return vocab, added
}

func (g *ggufTokenizer) merges() []any {
	lines := ggufValue[[]string](g, "merges")
	merges := make([]any, len(lines))
	for i, line := range lines {
		left, right, ok := strings.Cut(line, " ")
		if !ok || right == "" || strings.Contains(right, " ") {
			g.fail("merge %d, %.60q, is not a pair of tokens", i, line)
		}
		merges[i] = []any{left, right}
	}
	return merges
}

func (g *ggufTokenizer) postProcessor(absentBOS bool, config *ordered.Object) any {
	addBOS, addEOS := ggufOptional(g, "add_bos_token", absentBOS), ggufOptional(g, "add_eos_token", false)
	if !addBOS && !addEOS {
		return byteLevelJSON(false)
	}
	text := func(name string, typeID int64) *ordered.Object {
		return ordered.NewObject("Sequence", ordered.NewObject("id", name, "type_id", typeID))
	}
	single, pair := []any{text("A", 0)}, []any{text("A", 0), text("B", 1)}
	special := &ordered.Object{}
	around := func(key string) *ordered.Object {
		v, ok := config.Get(key)
		if !ok {
			g.fail("%sadd_%s is true, or absent and true by default, but there is no such token: set it to false", GGUFPrefix, key)
			return nil
		}
		special.Set(v.(string), ordered.NewObject("id", v, "ids", []any{g.ids[key+"_id"]}, "tokens", []any{v}))
		return ordered.NewObject("SpecialToken", ordered.NewObject("id", v, "type_id", int64(0)))
	}
	for i, add := range []bool{addBOS, addEOS} {
		if !add {
			continue
		}
		part := around([]string{"bos_token", "eos_token"}[i])
		single, pair = slices.Insert(single, i*len(single), any(part)), slices.Insert(pair, i*len(pair), any(part))
	}
	return ordered.NewObject("type", "TemplateProcessing", "single", single, "pair", pair, "special_tokens", special)
}
