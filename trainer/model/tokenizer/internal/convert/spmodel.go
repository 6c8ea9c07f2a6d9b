package convert

import (
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/format"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// Field numbers of SentencePiece's sentencepiece_model.proto.
const (
	modelPieces, modelTrainer, modelNormalizer           = 1, 2, 3
	pieceText, pieceScore, pieceType                     = 1, 2, 3
	trainerKind, trainerSuffix, trainerByteFallback      = 3, 24, 35
	trainerUnk, trainerBOS, trainerEOS, trainerPad       = 40, 41, 42, 43
	normalizerName, normalizerMap, normalizerPrefix      = 1, 2, 3
	normalizerRemoveSpaces, normalizerEscape, trainerBPE = 4, 5, 2
)

// spModel is a tokenizer.model of SentencePiece.
type spModel struct {
	tokens []string
	scores []float64
	types  []int64

	kind                         uint64
	unk, bos, eos, pad           int64
	byteFallback, prefix, remove bool
	escape, suffix               bool
	normalizer                   string
	characterMap                 bool
}

// FromSentencePiece builds tokenizer.json and tokenizer_config.json from tokenizer.model. It first converts the model to the
// metadata that a GGUF file would have. settings is the tokenizer_config.json next to the model, or nil.
func FromSentencePiece(data []byte, settings *ordered.Object) (tokenizer, config *ordered.Object, err error) {
	m := &spModel{unk: 0, bos: 1, eos: 2, pad: -1, kind: 1, prefix: true, remove: true, escape: true}
	switch err := m.read(data); {
	case len(m.tokens) == 0:
		return nil, nil, errors.New("no pieces: not a SentencePiece model. If it is tiktoken's, write tokenizer.json with transformers: " +
			"AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)")
	case err != nil:
		return nil, nil, err
	case m.kind != trainerBPE:
		return nil, nil, fmt.Errorf("a model of type %d (1 is unigram): only BPE, type 2, is supported", m.kind)
	case m.characterMap || m.normalizer != "" && m.normalizer != "identity":
		return nil, nil, fmt.Errorf("the normalizer %q is not supported: only identity is", m.normalizer)
	case m.remove:
		return nil, nil, errors.New("remove_extra_whitespaces is not supported")
	case !m.escape:
		return nil, nil, errors.New("escape_whitespaces false is not supported")
	case m.suffix:
		return nil, nil, errors.New("treat_whitespace_as_suffix is not supported")
	case !m.byteFallback:
		return nil, nil, errors.New("a model without byte_fallback is not supported")
	}
	meta := map[string]any{GGUFPrefix + "model": "llama", GGUFPrefix + "tokens": m.tokens, GGUFPrefix + "scores": m.scores,
		GGUFPrefix + "token_type": m.types, GGUFPrefix + "add_space_prefix": m.prefix, GGUFPrefix + "unknown_token_id": m.unk,
		GGUFPrefix + "bos_token_id": m.bos, GGUFPrefix + "eos_token_id": m.eos, GGUFPrefix + "padding_token_id": m.pad}
	for _, key := range []string{"add_bos_token", "add_eos_token"} {
		if v, ok := settings.Get(key); ok {
			meta[GGUFPrefix+key] = v
		}
	}
	if space, _ := settings.Get("add_prefix_space"); space == false {
		meta[GGUFPrefix+"add_space_prefix"] = false
	}
	legacy, found := settings.Get("legacy")
	g := ggufTokenizer{meta: meta, firstOnly: found && legacy == false}
	return g.objects()
}

// read reads the model. It skips fields that are not needed.
func (m *spModel) read(data []byte) error {
	return eachField(data, func(field protowire.Number, number uint64, text []byte) error {
		switch field {
		case modelPieces:
			return m.readPiece(text)
		case modelTrainer:
			return eachField(text, func(field protowire.Number, n uint64, _ []byte) error {
				ids := map[protowire.Number]*int64{trainerUnk: &m.unk, trainerBOS: &m.bos, trainerEOS: &m.eos, trainerPad: &m.pad}
				switch id, ok := ids[field]; {
				case ok:
					*id = int64(int32(n))
				case field == trainerKind:
					m.kind = n
				case field == trainerSuffix:
					m.suffix = n != 0
				case field == trainerByteFallback:
					m.byteFallback = n != 0
				}
				return nil
			})
		case modelNormalizer:
			return eachField(text, func(field protowire.Number, n uint64, text []byte) error {
				switch field {
				case normalizerName:
					m.normalizer = string(text)
				case normalizerMap:
					m.characterMap = len(text) > 0
				case normalizerPrefix:
					m.prefix = n != 0
				case normalizerRemoveSpaces:
					m.remove = n != 0
				case normalizerEscape:
					m.escape = n != 0
				}
				return nil
			})
		}
		return nil
	})
}

func (m *spModel) readPiece(data []byte) error {
	token, score, kind := "", 0.0, uint64(TokenNormal)
	err := eachField(data, func(field protowire.Number, n uint64, text []byte) error {
		switch field {
		case pieceText:
			token = string(text)
		case pieceScore:
			score = float64(math.Float32frombits(uint32(n)))
		case pieceType:
			kind = n
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(m.tokens) == format.MaxID {
		return fmt.Errorf("more than %d pieces", format.MaxID)
	}
	if token == "" || len(token) > format.MaxTokenText || !utf8.ValidString(token) {
		return fmt.Errorf("piece %d, %.60q, is not a text of at most %d bytes", len(m.tokens), token, format.MaxTokenText)
	}
	m.tokens, m.scores, m.types = append(m.tokens, token), append(m.scores, score), append(m.types, int64(min(kind, 255)))
	return nil
}

// eachField calls f for each field of a protocol buffers message. It passes the field's number value, or the bytes of a
// nested message.
func eachField(data []byte, f func(field protowire.Number, number uint64, bytes []byte) error) error {
	for len(data) > 0 {
		field, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		var number uint64
		var bytes []byte
		switch kind {
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(data)
		case protowire.Fixed32Type:
			var v uint32
			v, n = protowire.ConsumeFixed32(data)
			number = uint64(v)
		case protowire.BytesType:
			bytes, n = protowire.ConsumeBytes(data)
		default:
			n = protowire.ConsumeFieldValue(field, kind, data)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if err := f(field, number, bytes); err != nil {
			return err
		}
	}
	return nil
}
