package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/format"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// wordLevel encodes each word as one id.
type wordLevel struct {
	vocab map[string]int32
	unk   int32
}

func newWordLevel(s *spec) (*wordLevel, error) {
	for key := range s.options.All() {
		if key != "type" && key != "unk_token" {
			return nil, fmt.Errorf("unknown key %q", key)
		}
	}
	text, _ := ordered.Value[string](s.options, "unk_token")
	unk, ok := s.vocab[text]
	if !ok {
		return nil, fmt.Errorf("unk_token %q is not in the vocabulary", text)
	}
	return &wordLevel{s.vocab, unk}, nil
}

func (m *wordLevel) Append(ids []int32, word string) []int32 {
	id, ok := m.vocab[word]
	if !ok {
		id = m.unk
	}
	return append(ids, id)
}

// WordLevel describes a word-level tokenizer to write. Spaces separate the words of a text. The id of a word is its index
// in Vocab.
type WordLevel struct {
	Vocab         []string
	Unk           string   // the word of Vocab for unknown words
	BOS, EOS, Pad string   // words of Vocab, "" for none
	Special       []string // further words of Vocab that are special tokens
	ChatTemplate  string   // "" for none
}

// Files returns tokenizer.json, tokenizer_config.json and, with a template, chat_template.jinja. Parse and transformers'
// PreTrainedTokenizerFast read them and give the same ids.
func (w WordLevel) Files() (map[string][]byte, error) {
	vocab := &ordered.Object{}
	for i, word := range w.Vocab {
		if word == "" || strings.ContainsFunc(word, unicode.IsSpace) || !utf8.ValidString(word) {
			return nil, fmt.Errorf("tokenizer: word %d, %q, is empty or contains white space", i, word)
		}
		if _, again := vocab.Get(word); again {
			return nil, fmt.Errorf("tokenizer: the word %q occurs twice", word)
		}
		vocab.Set(word, int64(i))
	}
	config := ordered.NewObject("tokenizer_class", "PreTrainedTokenizerFast", "clean_up_tokenization_spaces", false,
		"model_max_length", int64(1<<20))
	special := &ordered.Object{}
	for _, n := range []struct{ key, word string }{
		{"bos_token", w.BOS}, {"eos_token", w.EOS}, {"pad_token", w.Pad}, {"unk_token", w.Unk}} {
		if n.word != "" {
			config.Set(n.key, n.word)
			special.Set(n.word, true)
		}
	}
	extra := []any{}
	for _, word := range w.Special {
		if _, named := special.Get(word); !named {
			extra = append(extra, word)
			special.Set(word, true)
		}
	}
	if len(extra) > 0 {
		config.Set("additional_special_tokens", extra)
	}
	added := []any{}
	for id, word := range w.Vocab {
		if _, ok := special.Get(word); ok {
			added = append(added, format.AddedToken(int64(id), word, true))
		}
	}
	if len(added) != special.Len() {
		return nil, fmt.Errorf("tokenizer: a special word is not in the vocabulary: %q", special.Keys())
	}
	if _, ok := vocab.Get(w.Unk); !ok {
		return nil, fmt.Errorf("tokenizer: the unknown word %q is not in the vocabulary", w.Unk)
	}
	model := ordered.NewObject("type", "WordLevel", "vocab", vocab, "unk_token", w.Unk)
	files, err := encodeFiles(map[string]*ordered.Object{
		fileTokenizer: format.Tokenizer(added, nil, ordered.NewObject("type", "WhitespaceSplit"), nil, nil, model),
		fileConfig:    config,
	})
	if err == nil && w.ChatTemplate != "" {
		files[fileTemplate] = []byte(w.ChatTemplate)
	}
	return files, err
}

// WriteWordLevel writes w.Files() into dir and makes dir if necessary.
func WriteWordLevel(dir string, w WordLevel) error {
	files, err := w.Files()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
			return err
		}
	}
	return nil
}

func encodeFiles(objects map[string]*ordered.Object) (map[string][]byte, error) {
	files := map[string][]byte{}
	for name, o := range objects {
		text, err := ordered.Dumps(o, ordered.Format{})
		if err != nil {
			return nil, err
		}
		var out bytes.Buffer
		if err := json.Indent(&out, []byte(text), "", "  "); err != nil {
			return nil, err
		}
		out.WriteByte('\n')
		files[name] = out.Bytes()
	}
	return files, nil
}
