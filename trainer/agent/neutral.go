package agent

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// Neutral breaks control tokens in a text from outside.
func (t *Template) Neutral(text string) string { return t.neutral.Replace(text) }

// Neutralizer breaks control tokens in text from outside: a tool's output or a sub-task that contains <|im_end|> must not end a
// turn, and one that contains </think>, <tool_call> or </tool_response> must not become that token, either. Control tokens are the special tokens and all other
// added tokens but for white space and tags of HTML, which are added for their frequency.
func Neutralizer(t Tokenizer) *strings.Replacer {
	var pairs []string
	for id := range int32(t.VocabSize()) {
		text := t.Token(id)
		if _, first := utf8.DecodeRuneInString(text); first < len(text) && (t.Special(id) || t.Added(id) && !frequent(text)) {
			pairs = append(pairs, text, text[:first]+" "+text[first:])
		}
	}
	return strings.NewReplacer(pairs...)
}

// frequent reports whether an added token that is not special is a piece of ordinary text.
func frequent(token string) bool {
	if strings.Trim(token, " \t\r\n▁") == "" {
		return true
	}
	name := strings.TrimPrefix(strings.TrimPrefix(strings.TrimSuffix(token, ">"), "<"), "/")
	return strings.HasPrefix(token, "<") && strings.HasSuffix(token, ">") && slices.Contains(elements, name)
}

// elements are the elements of HTML that Gemma's vocabulary has.
var elements = strings.Fields("table caption thead tbody tfoot tr th td h1 h2 h3 h4 h5 h6 blockquote strong em b code i u s sub sup ul ol li p br hr a img div span pre")

// NeutralValue breaks control tokens in the texts of a JSON value, where they may have been written with escapes.
func NeutralValue(v any, neutral func(string) string) any {
	switch v := v.(type) {
	case string:
		return neutral(v)
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = NeutralValue(e, neutral)
		}
		return out
	case *ordered.Object:
		out := &ordered.Object{}
		for _, key := range v.Keys() {
			e, _ := v.Get(key)
			out.Set(neutral(key), NeutralValue(e, neutral))
		}
		return out
	}
	return v
}
