package convert

import (
	"cmp"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/bpe"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/format"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// sentencePiece returns tokenizer.json and tokenizer_config.json for the models "llama", whose tokens have scores instead
// of merges, and "gemma4", which has merges. Both replace spaces by ▁ and write characters that are not in the vocabulary
// as bytes.
func (g *ggufTokenizer) sentencePiece(kind string) (tokenizer, config *ordered.Object) {
	absent := map[string]int64{}
	prefix := false
	if kind == "llama" { // the defaults of llama.cpp
		absent = map[string]int64{"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
		prefix = true
	}
	config, prefix = g.config(absent), ggufOptional(g, "add_space_prefix", prefix)
	if ggufOptional(g, "remove_extra_whitespaces", false) {
		g.fail("%sremove_extra_whitespaces true is not supported", GGUFPrefix)
	}
	merges := g.merges
	if kind == "llama" {
		merges = g.scoredMerges
	}
	vocab, added := g.vocab(true)
	unk, hasUnk := config.Get("unk_token")
	model := ordered.NewObject("type", "BPE", "dropout", nil, "unk_token", unk, "continuing_subword_prefix", nil,
		"end_of_word_suffix", nil, "fuse_unk", hasUnk, "byte_fallback", true, "ignore_merges", false, "vocab", vocab, "merges", merges())
	normalizer, pre, decoder := metaspaceJSON(prefix, g.firstOnly)
	return format.Tokenizer(added, normalizer, pre, g.postProcessor(true, config), decoder, model), config
}

// metaspaceJSON returns the components that replace spaces by ▁ and back. With prefix, a ▁ is put before the text and,
// unless firstOnly is set, before each text that follows an added token.
func metaspaceJSON(prefix, firstOnly bool) (normalizer, pre, decoder any) {
	replace := func(from, to string) *ordered.Object {
		return ordered.NewObject("type", "Replace", "pattern", ordered.NewObject("String", from), "content", to)
	}
	decoders := []any{replace(bpe.SpaceMark, " "), ordered.NewObject("type", "ByteFallback"), ordered.NewObject("type", "Fuse")}
	if prefix {
		decoders = append(decoders, ordered.NewObject("type", "Strip", "content", " ", "start", int64(1), "stop", int64(0)))
	}
	decoder = ordered.NewObject("type", "Sequence", "decoders", decoders)
	switch {
	case prefix && firstOnly:
		return nil, ordered.NewObject("type", "Metaspace", "replacement", bpe.SpaceMark, "prepend_scheme", "first", "split", false), decoder
	case prefix:
		steps := []any{ordered.NewObject("type", "Prepend", "prepend", bpe.SpaceMark), replace(" ", bpe.SpaceMark)}
		return ordered.NewObject("type", "Sequence", "normalizers", steps), nil, decoder
	}
	return replace(" ", bpe.SpaceMark), nil, decoder
}

// scoredMerges derives merges from scores: each pair of tokens that form a token. Pairs that form a token with a higher
// score come first.
func (g *ggufTokenizer) scoredMerges() []any {
	scores := ggufValue[[]float64](g, "scores")
	if len(scores) < len(g.tokens) {
		g.fail("%d scores for %d tokens", len(scores), len(g.tokens))
		return nil
	}
	ids := make(map[string]int, len(g.tokens))
	for id, text := range g.tokens {
		// A user-defined token such as Gemma's ▁▁ is only found by merges, because the text before normalisation has spaces.
		if g.types[id] == TokenNormal || g.types[id] == TokenUserDefined {
			ids[text] = id
		}
	}
	type merge struct{ left, right, token int }
	var list []merge
	for id, text := range g.tokens {
		if _, ok := ids[text]; !ok || len(text) > format.MaxTokenText {
			continue
		}
		for i := range text {
			left, okLeft := ids[text[:i]]
			right, okRight := ids[text[i:]]
			if okLeft && okRight {
				list = append(list, merge{left, right, id})
			}
		}
	}
	if len(list) > format.MaxMerges {
		g.fail("the scores stand for %d merges: at most %d are allowed", len(list), format.MaxMerges)
		return nil
	}
	slices.SortStableFunc(list, func(a, b merge) int {
		return cmp.Or(cmp.Compare(scores[b.token], scores[a.token]), cmp.Compare(a.left, b.left), cmp.Compare(a.right, b.right))
	})
	merges := make([]any, len(list))
	for i, m := range list {
		merges[i] = []any{g.tokens[m.left], g.tokens[m.right]}
	}
	return merges
}
