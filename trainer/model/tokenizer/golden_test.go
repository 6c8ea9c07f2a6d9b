package tokenizer

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// eachGolden runs f for every tokenizer folder of the goldens.
func eachGolden(t *testing.T, f func(t *testing.T, dir string, tok *Tokenizer)) {
	for _, root := range golden.Dirs(t, "tokenizer", "tokenizer-2026") { // tokenizer-2026 has tokenizers without chats
		entries, err := os.ReadDir(root)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !e.IsDir() {
				continue
			}
			t.Run(e.Name(), func(t *testing.T) {
				dir := filepath.Join(root, e.Name())
				f(t, dir, loadGolden(t, dir))
			})
		}
	}
}

func goldenTokenizer(t testing.TB, name string) *Tokenizer {
	return loadGolden(t, golden.File(t, "tokenizer", name))
}

// loaded keeps tokenizers between tests, because loading one takes a good part of a second.
var loaded sync.Map // by folder

func loadGolden(t testing.TB, dir string) *Tokenizer {
	t.Helper()
	if tok, ok := loaded.Load(dir); ok {
		return tok.(*Tokenizer)
	}
	tok, err := Parse(goldenFiles(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	loaded.Store(dir, tok)
	return tok
}

// goldenFiles reads a tokenizer's folder.
func goldenFiles(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	return golden.Folder(t, dir, fileNames...)
}

// rows calls f for each line of a JSON lines file, decoded into a new T, and prints the number of lines.
func rows[T any](t *testing.T, dir, name string, f func(t *testing.T, line int, row T)) {
	t.Helper()
	golden.Count("tokenizer/"+filepath.Base(dir)+"/"+name, eachRow(t, dir, name, f))
}

// eachRow calls f like rows and prints nothing, for tests that use the goldens for another purpose.
func eachRow[T any](t *testing.T, dir, name string, f func(t *testing.T, line int, row T)) int {
	t.Helper()
	path := filepath.Join(dir, name+".jsonl")
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && os.Getenv(golden.Env) != "" {
		t.Skipf("golden: tokenizer/%s/%s: absent", filepath.Base(dir), name)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20)
	n := 0
	for lines.Scan() {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		n++
		var row T
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatalf("%s:%d: %v", path, n, err)
		}
		f(t, n, row)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if n == 0 {
		t.Fatalf("%s: no rows", path)
	}
	return n
}

func TestGoldenCases(t *testing.T) {
	eachGolden(t, func(t *testing.T, dir string, tok *Tokenizer) {
		type row struct {
			Text    string  `json:"text"`
			IDs     []int32 `json:"ids"`
			Decoded string  `json:"decoded"`
			Skipped *string `json:"decoded_skip_special"`
			Note    string  `json:"note"`
		}
		rows(t, dir, "cases", func(t *testing.T, line int, r row) {
			if got := tok.Encode(r.Text); !slices.Equal(got, r.IDs) {
				t.Errorf("line %d (%s): Encode(%.200q)\n got %v\nwant %v", line, r.Note, r.Text, clip(got), clip(r.IDs))
			}
			checkDecode(t, line, tok, r.IDs, r.Decoded, r.Skipped)
		})
	})
}

func TestGoldenBytes(t *testing.T) {
	eachGolden(t, func(t *testing.T, dir string, tok *Tokenizer) {
		if _, err := os.Stat(filepath.Join(dir, "bytes.jsonl")); err != nil && filepath.Base(filepath.Dir(dir)) == "tokenizer-2026" {
			return
		}
		type row struct {
			IDs      []int32  `json:"ids"`
			BytesHex string   `json:"bytes_hex"`
			TokenHex []string `json:"token_hex"`
			Decoded  string   `json:"decoded"`
			Skipped  *string  `json:"decoded_skip_special"`
			Chunks   []string `json:"chunks"`
		}
		rows(t, dir, "bytes", func(t *testing.T, line int, r row) {
			checkDecode(t, line, tok, r.IDs, r.Decoded, r.Skipped)
			if r.Chunks == nil { // goldens of decoding only
				return
			}
			if got := hex.EncodeToString(tok.Bytes(r.IDs)); got != r.BytesHex {
				t.Errorf("line %d: Bytes: got %s, want %s", line, got, r.BytesHex)
			}
			for i, id := range r.IDs {
				if got := hex.EncodeToString(tok.TokenBytes(id)); got != r.TokenHex[i] {
					t.Errorf("line %d: TokenBytes(%d): got %s, want %s", line, id, got, r.TokenHex[i])
				}
			}
			s := tok.NewStream(false)
			for i, id := range r.IDs {
				if got := s.Push(id); got != r.Chunks[i] {
					t.Errorf("line %d: Push %d: got %q, want %q", line, i, got, r.Chunks[i])
				}
			}
			if got, want := s.Flush(), r.Chunks[len(r.IDs)]; got != want {
				t.Errorf("line %d: Flush: got %q, want %q", line, got, want)
			}
		})
	})
}

func checkDecode(t *testing.T, line int, tok *Tokenizer, ids []int32, decoded string, skipped *string) {
	t.Helper()
	if skipped == nil {
		skipped = &decoded
	}
	for _, skip := range []bool{false, true} {
		want := decoded
		if skip {
			want = *skipped
		}
		if got := tok.Decode(ids, skip); got != want {
			t.Errorf("line %d: Decode(skip %v):\n got %.300q\nwant %.300q", line, skip, got, want)
		}
		if got := stream(tok, ids, skip); got != want {
			t.Errorf("line %d: Stream(skip %v):\n got %.300q\nwant %.300q", line, skip, got, want)
		}
	}
}

func stream(tok *Tokenizer, ids []int32, skip bool) string {
	s := tok.NewStream(skip)
	var text strings.Builder
	for _, id := range ids {
		text.WriteString(s.Push(id))
	}
	text.WriteString(s.Flush())
	return text.String()
}

// chatRow is a line of chat.jsonl or chat_errors.jsonl.
type chatRow struct {
	Chat     Chat
	Rendered string
	IDs      []int32
	Note     string
}

func (r *chatRow) UnmarshalJSON(data []byte) error {
	v, err := ordered.Parse(data)
	if err != nil {
		return err
	}
	o := v.(*ordered.Object)
	get := func(key string) any { v, _ := o.Get(key); return v }
	r.Chat.Messages, _ = get("messages").([]any)
	r.Chat.Tools, _ = get("tools").([]any)
	r.Chat.AddGenerationPrompt, _ = get("add_generation_prompt").(bool)
	if thinking, ok := get("enable_thinking").(bool); ok {
		r.Chat.EnableThinking = &thinking
	}
	r.Rendered, _ = get("rendered").(string)
	r.Note, _ = get("note").(string)
	ids, _ := get("ids").([]any)
	for _, id := range ids {
		r.IDs = append(r.IDs, int32(id.(int64)))
	}
	return nil
}

func TestGoldenChat(t *testing.T) {
	eachGolden(t, func(t *testing.T, dir string, tok *Tokenizer) {
		if tok.chat.plain == nil {
			return
		}
		rows(t, dir, "chat", func(t *testing.T, line int, r chatRow) {
			got, err := tok.Render(r.Chat)
			if err != nil {
				t.Errorf("line %d (%s): %v", line, r.Note, err)
				return
			}
			if got != r.Rendered {
				t.Errorf("line %d (%s): Render:\n got %q\nwant %q", line, r.Note, got, r.Rendered)
			}
			if ids := tok.Encode(r.Rendered); !slices.Equal(ids, r.IDs) {
				t.Errorf("line %d (%s): Encode:\n got %v\nwant %v", line, r.Note, clip(ids), clip(r.IDs))
			}
		})
	})
}

func TestGoldenChatErrors(t *testing.T) {
	eachGolden(t, func(t *testing.T, dir string, tok *Tokenizer) {
		if tok.chat.plain == nil {
			return
		}
		rows(t, dir, "chat_errors", func(t *testing.T, line int, r chatRow) {
			if got, err := tok.Render(r.Chat); err == nil {
				t.Errorf("line %d (%s): Render returned %q, want an error", line, r.Note, got)
			}
		})
	})
}

func clip(ids []int32) []int32 { return ids[:min(len(ids), 60)] }
