// Package format has limits of tokenizer.json, and builds its objects.
package format

import "github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"

// Limits on tokenizer.json. The largest vocabulary in use has 262,144 tokens.
const (
	MaxID        = 1 << 21 // ids are smaller
	MaxMerges    = 1 << 22
	MaxTokenText = 1 << 9 // bytes of an added token; in the worst case, each byte of a text is read as often
)

// Tokenizer returns tokenizer.json with these components, which are nil if absent.
func Tokenizer(added []any, normalizer, preTokenizer, postProcessor, decoder any, model *ordered.Object) *ordered.Object {
	return ordered.NewObject("version", "1.0", "truncation", nil, "padding", nil, "added_tokens", added,
		"normalizer", normalizer, "pre_tokenizer", preTokenizer, "post_processor", postProcessor,
		"decoder", decoder, "model", model)
}

// AddedToken returns an entry of added_tokens.
func AddedToken(id int64, content string, special bool) *ordered.Object {
	return ordered.NewObject("id", id, "content", content, "single_word", false, "lstrip", false,
		"rstrip", false, "normalized", false, "special", special)
}
