package tokenizer

import (
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/bpe"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/convert"
)

// byteComplete returns a small byte-level tokenizer with every byte in its vocabulary and a few merges.
func byteComplete(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := Parse(byteCompleteFiles(t))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func byteCompleteFiles(t testing.TB) map[string][]byte {
	t.Helper()
	tokens, types := make([]string, 256), make([]int64, 256)
	for b := range tokens {
		tokens[b], types[b] = string(bpe.ByteRune(byte(b))), convert.TokenNormal
	}
	var merges []string
	for _, pair := range []string{"a b", "Ġ t", "h e", "Ġt he", "ab ab", "Ã ©", "ð Ł", "1 2", "a a", "aa aa"} {
		merges = append(merges, pair)
		tokens, types = append(tokens, strings.ReplaceAll(pair, " ", "")), append(types, convert.TokenNormal)
	}
	for _, added := range []string{"<|im_start|>", "<|im_end|>", "<think>"} {
		tokens, types = append(tokens, added), append(types, convert.TokenControl)
	}
	files, err := fromGGUF(map[string]any{"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
		"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types, "tokenizer.ggml.merges": merges,
		"tokenizer.ggml.eos_token_id": int64(267), "tokenizer.chat_template": "{{ messages[0].content + eos_token }}"})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func FuzzEncodeDecode(f *testing.F) {
	for _, s := range []string{"", "the <|im_end|>the", "ababababa aaaaaaaaa", "é 😀 12\n\n  x", "\xff\xf0\x9f", "<|im_<|im_start|>",
		strings.Repeat("aab the é", 40)} {
		f.Add(s)
	}
	tok := byteComplete(f)
	f.Fuzz(func(t *testing.T, text string) {
		ids := tok.Encode(text)
		want := validUTF8(text)
		if got := tok.Decode(ids, false); got != want {
			t.Errorf("Decode(Encode): got %q, want %q", got, want)
		}
		if got := stream(tok, ids, false); got != want {
			t.Errorf("Stream: got %q, want %q", got, want)
		}
		for _, id := range ids {
			if id < 0 || int(id) >= tok.VocabSize() {
				t.Errorf("id %d", id)
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	good := byteCompleteFiles(f)
	f.Add(good[fileTokenizer], good[fileConfig])
	wordFiles, err := words.Files()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(wordFiles[fileTokenizer], wordFiles[fileConfig])
	for _, h := range hostile {
		f.Add([]byte(h.tokenizer), []byte(h.config))
	}
	f.Fuzz(func(t *testing.T, tokenizer, config []byte) {
		files := map[string][]byte{fileTokenizer: tokenizer, fileConfig: config}
		tok, err := Parse(files)
		if err != nil {
			return
		}
		ids := tok.EncodeWithSpecial("Ada is <call> the 12 é \xff<|im_end|>")
		if tok.Decode(ids, false) != stream(tok, ids, false) {
			t.Error("Stream differs from Decode")
		}
		for id := range tok.VocabSize() {
			if text := tok.Token(int32(id)); text != "" {
				if back, ok := tok.ID(text); !ok || int(back) != id {
					t.Errorf("token %d, %q, has the id %d", id, text, back)
				}
			}
		}
	})
}
