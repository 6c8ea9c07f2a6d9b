package tokenizer

import (
	"slices"
	"strings"
)

// TokenBeyond looks for tokens that can occur in a conversation although the model's embedding, with the given number of
// rows, does not have them. It returns the one with the smallest id. ok reports whether there is such a token. A
// special token counts only if it begins or ends a text or a turn, or if the chat template prints it. Published
// tokenizers of text models have special tokens for images, for which the model has no rows.
func (t *Tokenizer) TokenBeyond(rows int) (id int32, text string, ok bool) {
	for id := rows; id < len(t.vocab.tokens); id++ {
		if t.vocab.known(int32(id)) && t.occurs(int32(id)) {
			return int32(id), t.vocab.tokens[id].text, true
		}
	}
	return NoID, "", false
}

// occurs reports whether a conversation can contain a token.
func (t *Tokenizer) occurs(id int32) bool {
	token := t.vocab.tokens[id]
	return !token.special || strings.Contains(t.chat.printed, token.text) ||
		slices.Contains(slices.Concat(t.stop, t.before, t.after, []int32{t.BOS(), t.EOS()}), id)
}
