// Package tokenizer encodes text as token ids, decodes ids, and renders chats as prompts. It reads tokenizer.json as
// Hugging Face's tokenizers library does: byte-level BPE, BPE of the SentencePiece kind, and word level. Streaming decode
// never splits a character. A setting that this package does not support is an error that names the setting, never an
// approximation.
package tokenizer

import "github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/pretokenize"

// NoID stands for a token that the tokenizer does not have, such as a missing beginning-of-text token.
const NoID int32 = -1

// Tokenizer is immutable and safe for concurrent use.
type Tokenizer struct {
	encoder encoder
	added   *addedTokens
	vocab   vocabulary

	normalize normalizer // nil: none
	decoder   decoder

	before, after []int32 // ids that EncodeWithSpecial adds

	named map[string]string // bos_token, eos_token, …: token strings that chat templates can use
	stop  []int32
	chat  chatTemplates
	files map[string][]byte
}

// encoder encodes normalised text between added tokens: the steps cut it into pieces, which the model encodes one by one.
type encoder struct {
	steps []pretokenize.Step
	model model
}

// model appends the ids of a piece.
type model interface {
	Append(ids []int32, piece string) []int32
}

// encode appends the ids of a text. first reports whether the text begins at the start of the text that was passed to Encode.
func (e encoder) encode(ids []int32, text string, first bool) []int32 {
	pretokenize.Apply(e.steps, text, first, func(piece string) { ids = e.model.Append(ids, piece) })
	return ids
}

// VocabSize returns the largest id plus 1. A model's embedding may have more rows.
func (t *Tokenizer) VocabSize() int { return len(t.vocab.tokens) }

// ID returns the id of a token, given as in the vocabulary (byte-level text for byte-level BPE).
func (t *Tokenizer) ID(token string) (int32, bool) {
	id, ok := t.vocab.ids[token]
	return id, ok
}

// Token returns the token of an id as it is in the vocabulary, or "" for an id without a token.
func (t *Tokenizer) Token(id int32) string {
	if !t.vocab.known(id) {
		return ""
	}
	return t.vocab.tokens[id].text
}

// Special reports whether the id is a special token, which Decode can skip.
func (t *Tokenizer) Special(id int32) bool { return t.vocab.known(id) && t.vocab.tokens[id].special }

// Added reports whether the id is an added token, special or not. Encode finds added tokens in a text before the model
// splits it.
func (t *Tokenizer) Added(id int32) bool { return t.vocab.known(id) && t.vocab.tokens[id].added }

// BOS returns the id of the beginning-of-text token, or NoID.
func (t *Tokenizer) BOS() int32 { return t.namedID("bos_token") }

// EOS returns the id of the end-of-text token, or NoID.
func (t *Tokenizer) EOS() int32 { return t.namedID("eos_token") }

// Pad returns the id of the padding token, or NoID.
func (t *Tokenizer) Pad() int32 { return t.namedID("pad_token") }

// Unk returns the id of the unknown token, or NoID.
func (t *Tokenizer) Unk() int32 { return t.namedID("unk_token") }

// StopIDs returns the ids that end a turn: EOS and the ids of generation_config.json, without duplicates.
func (t *Tokenizer) StopIDs() []int32 { return append([]int32(nil), t.stop...) }

// Files returns the contents of the tokenizer's files by name, for writing a checkpoint folder. The bytes are shared: do
// not change them.
func (t *Tokenizer) Files() map[string][]byte { return t.files }

func (t *Tokenizer) namedID(name string) int32 {
	s, named := t.named[name]
	if id, ok := t.vocab.ids[s]; named && ok {
		return id
	}
	return NoID
}

// Encode encodes text. It recognises added tokens in the text and adds no special tokens. Bytes that are not UTF-8 are
// treated as U+FFFD. Encode panics with a *PatternError if a regular expression of the file takes longer than 20 seconds
// for one match.
func (t *Tokenizer) Encode(text string) []int32 {
	text = validUTF8(text)
	ids := make([]int32, 0, len(text)/4+1)
	for i, p := range t.added.raw.split(text) {
		if p.id != NoID {
			ids = append(ids, p.id)
			continue
		}
		rest := p.text
		if t.normalize != nil {
			rest = t.normalize(rest)
		}
		for j, q := range t.added.normalized.split(rest) {
			if q.id != NoID {
				ids = append(ids, q.id)
				continue
			}
			ids = t.encoder.encode(ids, q.text, i == 0 && j == 0)
		}
	}
	return ids
}

// EncodeWithSpecial encodes text and adds the tokens of the file's post-processor, such as Llama 3's beginning-of-text
// token. A rendered chat already contains these tokens: use Encode for it.
func (t *Tokenizer) EncodeWithSpecial(text string) []int32 {
	ids := append([]int32(nil), t.before...)
	ids = append(ids, t.Encode(text)...)
	return append(ids, t.after...)
}
