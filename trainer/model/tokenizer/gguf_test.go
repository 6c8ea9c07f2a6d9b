package tokenizer

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/convert"
)

// ggufMeta returns a golden tokenizer as the metadata that llama.cpp's converter would write.
func ggufMeta(t *testing.T, name, pre string) map[string]any {
	t.Helper()
	tok := goldenTokenizer(t, name)
	s, err := readSpec(tok.Files()[fileTokenizer])
	if err != nil {
		t.Fatal(err)
	}
	tokens, types := make([]string, tok.VocabSize()+2), make([]int64, tok.VocabSize()+2)
	for id := range tokens {
		tokens[id], types[id] = "[PAD]", convert.TokenUnused
		if text := tok.Token(int32(id)); text != "" {
			tokens[id], types[id] = text, convert.TokenNormal
		}
	}
	for _, a := range s.added {
		types[a.id] = convert.TokenUserDefined
		if a.special {
			types[a.id] = convert.TokenControl
		}
	}
	merges := make([]string, len(s.merges))
	for i, m := range s.merges {
		merges[i] = m[0] + " " + m[1]
	}
	meta := map[string]any{"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": tokens,
		"tokenizer.ggml.token_type": types, "tokenizer.ggml.merges": merges}
	for key, id := range map[string]int32{"bos": tok.BOS(), "eos": tok.EOS(), "unknown": tok.Unk(), "padding": tok.Pad()} {
		if id != NoID {
			meta["tokenizer.ggml."+key+"_token_id"] = int64(id)
		}
	}
	return meta
}

func TestFromGGUFEncodesAsGolden(t *testing.T) {
	for name, pre := range map[string]string{"smollm2": "smollm", "qwen3": "qwen2"} {
		t.Run(name, func(t *testing.T) {
			files, err := fromGGUF(ggufMeta(t, name, pre))
			if err != nil {
				t.Fatal(err)
			}
			compareOnGolden(t, name, files)
		})
	}
}

// compareOnGolden checks that files encode and decode every golden text as the golden tokenizer does.
func compareOnGolden(t *testing.T, name string, files map[string][]byte) {
	t.Helper()
	got, err := Parse(files)
	if err != nil {
		t.Fatal(err)
	}
	want := goldenTokenizer(t, name)
	for _, p := range []struct{ got, want int32 }{{got.BOS(), want.BOS()}, {got.EOS(), want.EOS()}, {got.Pad(), want.Pad()},
		{got.Unk(), want.Unk()}, {int32(got.VocabSize()), int32(want.VocabSize())}} {
		if p.got != p.want {
			t.Errorf("a special id or the size is %d, want %d", p.got, p.want)
		}
	}
	type row struct {
		Text string  `json:"text"`
		IDs  []int32 `json:"ids"`
	}
	eachRow(t, golden.File(t, "tokenizer", name), "cases", func(t *testing.T, line int, r row) {
		if ids := got.Encode(r.Text); !slices.Equal(ids, r.IDs) {
			t.Errorf("line %d: Encode(%.100q)\n got %v\nwant %v", line, r.Text, clip(ids), clip(r.IDs))
		}
		for _, skip := range []bool{false, true} {
			if a, b := got.Decode(r.IDs, skip), want.Decode(r.IDs, skip); a != b {
				t.Errorf("line %d: Decode: got %.200q, want %.200q", line, a, b)
			}
		}
	})
}

func TestFromGGUFLlama3(t *testing.T) {
	meta := ggufMeta(t, "smollm2", "llama-bpe")
	files, err := fromGGUF(meta)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Parse(files)
	if err != nil {
		t.Fatal(err)
	}
	plain := tok.Encode("Hello 1234")
	if got := tok.EncodeWithSpecial("Hello 1234"); !slices.Equal(got, append([]int32{tok.BOS()}, plain...)) {
		t.Errorf("EncodeWithSpecial: got %v, want the bos token before %v", got, plain)
	}
	meta["tokenizer.ggml.add_bos_token"] = false
	if files, err = fromGGUF(meta); err != nil {
		t.Fatal(err)
	}
	if tok, err = Parse(files); err != nil {
		t.Fatal(err)
	}
	if got := tok.EncodeWithSpecial("Hello 1234"); !slices.Equal(got, plain) {
		t.Errorf("EncodeWithSpecial without add_bos_token: got %v, want %v", got, plain)
	}
}

// TestFromGGUFUserDefined: user-defined pieces such as Gemma's ▁▁ are found by merges. The ids are those of tokenizers 0.23.3.
func TestFromGGUFUserDefined(t *testing.T) {
	for _, c := range []struct {
		tokens []string
		types  []int64
		scores []float64
		text   string
		want   []int32
	}{
		{[]string{"<unk>", "<s>", "</s>", "▁▁", "▁", "a", "b", "▁b"}, []int64{2, 3, 3, 4, 1, 1, 1, 1}, []float64{0, 0, 0, 0, -3, -4, -5, -1}, "a  b", []int32{5, 3, 6}},
		// as in Gemma 3, some follow the last normal token
		{[]string{"<unk>", "<s>", "</s>", "▁", "a", "b", "▁b", "▁▁", "\t", "\t\t"}, []int64{2, 3, 3, 1, 1, 1, 1, 4, 4, 4}, []float64{0, 0, 0, -3, -4, -5, -1, 0, 0, 0},
			"a  b\t\t\t", []int32{4, 7, 5, 9, 8}},
	} {
		files, err := fromGGUF(map[string]any{"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": c.tokens, "tokenizer.ggml.token_type": c.types,
			"tokenizer.ggml.scores": c.scores, "tokenizer.ggml.add_space_prefix": false, "tokenizer.ggml.add_bos_token": false})
		if err != nil {
			t.Fatal(err)
		}
		tok, err := Parse(files)
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.Encode(c.text); !slices.Equal(got, c.want) {
			t.Errorf("%q: got %v, want %v", c.text, got, c.want)
		}
	}
}

// TestFromGGUFIDsBeyond: ids beyond the list of tokens, such as -1 as a uint32, count as absent. Then llama.cpp's defaults
// for the model "llama" are 1 (bos), 2 (eos) and 0 (unknown). Tokens of type 0 are encoded as normal tokens, as llama.cpp does.
func TestFromGGUFIDsBeyond(t *testing.T) {
	for model, want := range map[string][4]int32{"gpt2": {NoID, NoID, NoID, NoID}, "llama": {1, 2, 0, NoID}} {
		meta := map[string]any{"tokenizer.ggml.model": model, "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": []string{"a", "b", "ab"},
			"tokenizer.ggml.token_type": []int64{0, 1, 0}, "tokenizer.ggml.merges": []string{"a b"}, "tokenizer.ggml.scores": []float64{0, 0, 0}}
		for i, name := range []string{"bos", "eos", "unknown", "padding"} {
			meta["tokenizer.ggml."+name+"_token_id"] = []int64{math.MaxUint32, 3, 1 << 40, 9}[i]
		}
		files, err := fromGGUF(meta)
		if err != nil {
			t.Fatalf("%s: %v", model, err)
		}
		tok, err := Parse(files)
		if err != nil {
			t.Fatalf("%s: %v", model, err)
		}
		if got := [4]int32{tok.BOS(), tok.EOS(), tok.Unk(), tok.Pad()}; got != want {
			t.Errorf("%s: the special ids are %v, want %v", model, got, want)
		}
		if got := tok.EncodeWithSpecial("ab"); model == "gpt2" && !slices.Equal(got, []int32{2}) {
			t.Errorf("got %v, want [2]", got)
		}
	}
}

// TestRealGGUF uses the model file that `make gsm8k` downloads.
func TestRealGGUF(t *testing.T) {
	path := filepath.Join("..", "..", "..", "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("models/%s does not exist: make gsm8k downloads it", filepath.Base(path))
	}
	files, err := fromGGUF(readGGUFMeta(file))
	if err != nil {
		t.Fatal(err)
	}
	compareOnGolden(t, "smollm2", files)
	tok, _ := Parse(files)
	eachRow(t, golden.File(t, "tokenizer", "smollm2"), "chat", func(t *testing.T, line int, r chatRow) {
		if got, err := tok.Render(r.Chat); err != nil || got != r.Rendered {
			t.Errorf("line %d: Render: got %q, %v, want %q", line, got, err, r.Rendered)
		}
	})
}

// TestGoldenPublishedGGUF compares the vocabulary of a GGUF file, which MGRPO_GGUF names, with llama.cpp's
// ids of texts. They are in the file of the same name with .jsonl appended (make test-published).
func TestGoldenPublishedGGUF(t *testing.T) {
	path := os.Getenv("MGRPO_GGUF")
	if path == "" {
		t.Skip("MGRPO_GGUF is not set")
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files, err := fromGGUF(readGGUFMeta(file))
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Parse(files)
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		Text string
		IDs  []int32
	}
	rows(t, filepath.Dir(path), filepath.Base(path), func(t *testing.T, line int, r row) {
		if got := tok.Encode(r.Text); !slices.Equal(got, r.IDs) {
			t.Errorf("line %d: Encode(%.200q)\n got %v\nwant %v", line, r.Text, clip(got), clip(r.IDs))
		}
	})
}

// readGGUFMeta returns the strings, booleans and 32-bit integers of a trusted GGUF file's metadata.
func readGGUFMeta(b []byte) map[string]any {
	u32 := func() uint32 { v := binary.LittleEndian.Uint32(b); b = b[4:]; return v }
	u64 := func() uint64 { v := binary.LittleEndian.Uint64(b); b = b[8:]; return v }
	text := func() string { n := u64(); s := string(b[:n]); b = b[n:]; return s }
	u32() // magic
	u32() // version
	u64() // tensors
	meta := map[string]any{}
	for range u64() {
		key := text()
		switch kind := u32(); kind {
		case 4, 5, 6: // uint32, int32, float32
			meta[key] = int64(u32())
		case 7:
			meta[key] = b[0] != 0
			b = b[1:]
		case 8:
			meta[key] = text()
		case 9:
			element, n := u32(), u64()
			if element == 8 {
				list := make([]string, n)
				for i := range list {
					list[i] = text()
				}
				meta[key] = list
				continue
			}
			if element == 6 {
				list := make([]float64, n)
				for i := range list {
					list[i] = float64(math.Float32frombits(u32()))
				}
				meta[key] = list
				continue
			}
			list := make([]int64, n)
			for i := range list {
				list[i] = int64(u32())
			}
			meta[key] = list
		default:
			panic(fmt.Sprintf("key %s has the type %d", key, kind))
		}
	}
	return meta
}
