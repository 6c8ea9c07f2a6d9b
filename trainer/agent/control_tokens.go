package agent

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// Neutral breaks control tokens in a text from outside.
func (t *Template) Neutral(text string) string { return t.neutral.Replace(text) }

// Neutralizer returns a replacer that breaks control tokens in text from outside. A tool's output or a sub-task that
// contains <|im_end|> must not end a turn, and </think>, <tool_call> or </tool_response> in it must not become that
// token. Control tokens are the special tokens and all other added tokens except white space and HTML tags, which
// vocabularies add only because they are frequent.
func Neutralizer(t Tokenizer) *strings.Replacer {
	var pairs []string
	for id := range int32(t.VocabSize()) {
		text := t.Token(id)
		if _, first := utf8.DecodeRuneInString(text); first < len(text) && (t.Special(id) || t.Added(id) && !isOrdinaryText(text)) {
			pairs = append(pairs, text, text[:first]+" "+text[first:])
		}
	}
	return strings.NewReplacer(pairs...)
}

// isOrdinaryText reports whether an added token that is not special is a piece of ordinary text.
func isOrdinaryText(token string) bool {
	if strings.Trim(token, " \t\r\n▁") == "" {
		return true
	}
	name := strings.TrimPrefix(strings.TrimPrefix(strings.TrimSuffix(token, ">"), "<"), "/")
	return strings.HasPrefix(token, "<") && strings.HasSuffix(token, ">") && slices.Contains(htmlElements, name)
}

// htmlElements are the HTML elements in Gemma's vocabulary.
var htmlElements = strings.Fields("table caption thead tbody tfoot tr th td h1 h2 h3 h4 h5 h6 blockquote strong em b code i u s sub sup ul ol li p br hr " +
	"a img div span pre")

// NeutralValue breaks control tokens in the texts of a JSON value. In the JSON itself they may be written with escapes.
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
