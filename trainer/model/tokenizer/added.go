package tokenizer

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/pretokenize"
)

// addedToken is an entry of added_tokens: a string that is matched in the text before the model splits it.
type addedToken struct {
	id                         int32
	content                    string
	singleWord, lstrip, rstrip bool
	normalized                 bool // matched in normalised text, not in raw text
	special                    bool
}

// addedTokens finds added tokens: first those that are matched in raw text, then those in normalised text.
type addedTokens struct {
	list            []addedToken
	raw, normalized matcher
}

// piece is an added token, or text between added tokens (id NoID).
type piece struct {
	id   int32
	text string
}

func newAddedTokens(tokens []addedToken, normalize normalizer) *addedTokens {
	a := &addedTokens{list: tokens}
	for _, t := range tokens {
		switch {
		case t.content == "":
		case !t.normalized:
			a.raw.add(t)
		default:
			if normalize != nil {
				t.content = normalize(t.content)
			}
			if t.content != "" {
				a.normalized.add(t)
			}
		}
	}
	return a
}

// matcher is a trie over bytes.
type matcher struct {
	tokens []addedToken
	first  [256]bool
	nodes  []trieNode // nodes[0] is the root; empty without tokens
}

type trieNode struct {
	keys  []byte
	nodes []int32
	token int32 // index of the token that ends here, -1 for none
}

// add adds a token. Of equal tokens, a special one is found, or else the first. In tokenizers 0.23.3 it is any of them, by chance.
func (m *matcher) add(t addedToken) {
	if len(m.nodes) == 0 {
		m.nodes = []trieNode{{token: -1}}
	}
	m.first[t.content[0]] = true
	at := int32(0)
	for i := range len(t.content) {
		at = m.child(at, t.content[i])
	}
	if same := m.nodes[at].token; same >= 0 && (m.tokens[same].special || !t.special) {
		return // normalisation made two tokens equal
	}
	m.nodes[at].token = int32(len(m.tokens))
	m.tokens = append(m.tokens, t)
}

func (m *matcher) child(at int32, b byte) int32 {
	n := &m.nodes[at]
	if i := bytes.IndexByte(n.keys, b); i >= 0 {
		return n.nodes[i]
	}
	created := int32(len(m.nodes))
	n.keys, n.nodes = append(n.keys, b), append(n.nodes, created)
	m.nodes = append(m.nodes, trieNode{token: -1})
	return created
}

// longest returns the longest token at the start of s, or nil.
func (m *matcher) longest(s string) *addedToken {
	var found *addedToken
	at := int32(0)
	for i := range len(s) {
		n := &m.nodes[at]
		k := bytes.IndexByte(n.keys, s[i])
		if k < 0 {
			break
		}
		at = n.nodes[k]
		if t := m.nodes[at].token; t >= 0 {
			found = &m.tokens[t]
		}
	}
	return found
}

// split cuts text at added tokens, leftmost first, the longest of equal starts. Like the tokenizers library, it also finds tokens
// in the white space that rstrip gives to the token before.
func (m *matcher) split(text string) []piece {
	if text == "" {
		return nil
	}
	if len(m.nodes) == 0 {
		return []piece{{NoID, text}}
	}
	var out []piece
	done := 0  // text[:done] is in out
	space := 0 // the end of the white space after the last token with rstrip
	for i := 0; i < len(text); {
		var t *addedToken
		if m.first[text[i]] {
			t = m.longest(text[i:])
		}
		if t == nil {
			i++
			continue
		}
		start, stop := i, i+len(t.content)
		i = stop
		before, _ := utf8.DecodeLastRuneInString(text[:start]) // U+FFFD, which is in no word, if there is none
		after, _ := utf8.DecodeRuneInString(text[stop:])
		if t.singleWord && (pretokenize.IsWord(before) || pretokenize.IsWord(after)) {
			continue
		}
		if t.lstrip {
			start = max(done, len(strings.TrimRightFunc(text[:start], unicode.IsSpace)))
		}
		if t.rstrip {
			if stop > space {
				space = len(text) - len(strings.TrimLeftFunc(text[stop:], unicode.IsSpace))
			}
			stop = space
		}
		if start >= stop { // the white space belongs to the previous token
			continue
		}
		if done < start {
			out = append(out, piece{NoID, text[done:start]})
		}
		out = append(out, piece{id: t.id})
		done = stop
	}
	if done < len(text) {
		out = append(out, piece{NoID, text[done:]})
	}
	return out
}
