// Package tokenizer turns text into a model's token ids and back, and chats into prompts: tokenizer.json
// as Hugging Face's tokenizers library reads it (byte-level BPE, word level), streaming decode that never
// splits a character, and chat templates. What a file asks for and this package does not know is an error
// that names it, never an approximation.
package tokenizer

// NoID stands for a token that a tokenizer does not have (no beginning-of-text token, say).
const NoID int32 = -1

// Tokenizer is immutable once loaded and safe for concurrent use.
type Tokenizer struct {
	model  model
	added  *addedTokens
	tokens []token          // by id
	ids    map[string]int32 // by token string, added tokens included

	normalize func(string) string // nil: none
	join      joiner

	before, after []int32 // what EncodeWithSpecial puts around the ids

	named    map[string]string // bos_token, eos_token, …: the token strings a chat template may name
	stop     []int32
	template *template // nil: the folder had none
	files    map[string][]byte
}

// model turns one normalised text between added tokens into ids.
type model interface {
	encode(ids []int32, text string) []int32
}

type token struct {
	text    string // as in the vocabulary
	bytes   string // what it decodes to
	present bool
	special bool
}

// joiner says how token bytes become text.
type joiner int

const (
	joinBytes  joiner = iota // one after the other
	joinSpaces               // a single space between two tokens
)

// VocabSize is one more than the largest id, so that every id is below it. A model's embedding may have
// more rows.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

// ID is the id of a token as the vocabulary writes it (byte-level text for byte-level BPE).
func (t *Tokenizer) ID(token string) (int32, bool) {
	id, ok := t.ids[token]
	return id, ok
}

// Token is the token of an id as the vocabulary writes it, "" for an id without one.
func (t *Tokenizer) Token(id int32) string {
	if !t.known(id) {
		return ""
	}
	return t.tokens[id].text
}

// Special says whether Decode leaves the id out when asked to skip special tokens.
func (t *Tokenizer) Special(id int32) bool { return t.known(id) && t.tokens[id].special }

func (t *Tokenizer) known(id int32) bool {
	return id >= 0 && int(id) < len(t.tokens) && t.tokens[id].present
}

// BOS is the id of the beginning-of-text token, NoID if there is none.
func (t *Tokenizer) BOS() int32 { return t.namedID("bos_token") }

// EOS is the id of the end-of-text token, NoID if there is none.
func (t *Tokenizer) EOS() int32 { return t.namedID("eos_token") }

// Pad is the id of the padding token, NoID if there is none.
func (t *Tokenizer) Pad() int32 { return t.namedID("pad_token") }

// Unk is the id of the unknown token, NoID if there is none.
func (t *Tokenizer) Unk() int32 { return t.namedID("unk_token") }

// StopIDs lists the ids that end a turn: EOS and those of generation_config.json, without repeats.
func (t *Tokenizer) StopIDs() []int32 { return append([]int32(nil), t.stop...) }

// Files are the tokenizer's files by name, as they were read, for writing a checkpoint folder. The bytes
// are shared: do not change them.
func (t *Tokenizer) Files() map[string][]byte { return t.files }

func (t *Tokenizer) namedID(name string) int32 {
	if s, ok := t.named[name]; ok {
		if id, ok := t.ids[s]; ok {
			return id
		}
	}
	return NoID
}

// Encode turns text into ids. Added tokens in the text are recognised, nothing is put before or after.
// Bytes that are not UTF-8 count as U+FFFD.
func (t *Tokenizer) Encode(text string) []int32 {
	text = validUTF8(text)
	ids := make([]int32, 0, len(text)/4+1)
	for _, p := range t.added.splitRaw(text) {
		if p.id != NoID {
			ids = append(ids, p.id)
			continue
		}
		rest := p.text
		if t.normalize != nil {
			rest = t.normalize(rest)
		}
		for _, q := range t.added.splitNormalized(rest) {
			if q.id != NoID {
				ids = append(ids, q.id)
				continue
			}
			ids = t.model.encode(ids, q.text)
		}
	}
	return ids
}

// EncodeWithSpecial is Encode with what the file's post-processor adds, such as Llama 3's
// beginning-of-text token. A rendered chat already holds these tokens: use Encode for it.
func (t *Tokenizer) EncodeWithSpecial(text string) []int32 {
	ids := append([]int32(nil), t.before...)
	ids = append(ids, t.Encode(text)...)
	return append(ids, t.after...)
}
