package standalone

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const vocabulary = 320 // of llama-tiny

// openTiny loads llama-tiny. If words is set, it has a word-level tokenizer with the words w0, w1, ... and a chat template.
func openTiny(t testing.TB, words bool) *Checkpoint {
	t.Helper()
	dir := filepath.Join(testdata, "models", "llama-tiny")
	if words {
		dir = withWords(t, dir)
	}
	return open(t, dir, Options{Device: "cpu", Threads: 2, DType: "auto"})
}

func withWords(t testing.TB, weights string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors"} {
		data, err := os.ReadFile(filepath.Join(weights, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	w := tokenizer.WordLevel{Unk: "w0", EOS: "w2", Special: []string{"w2"},
		ChatTemplate: "{% for m in messages %}w3 {{ m.content }} {% endfor %}{% if add_generation_prompt %}w4{% endif %}"}
	for i := range vocabulary {
		w.Vocab = append(w.Vocab, fmt.Sprintf("w%d", i))
	}
	if err := tokenizer.WriteWordLevel(dir, w); err != nil {
		t.Fatal(err)
	}
	return dir
}

// reply is any answer.
type reply struct {
	ID           json.RawMessage `json:"id"`
	IDs          []int32         `json:"ids"`
	Text         *string         `json:"text"`
	LogProbs     []float32       `json:"logprobs"`
	Entropy      []float32       `json:"entropy"`
	FinishReason string          `json:"finish_reason"`
	Error        string          `json:"error"`
}

func replies(t *testing.T, out string) (all []reply) {
	t.Helper()
	for line := range strings.Lines(out) {
		var r reply
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, r)
	}
	return all
}

// hostile lists wrong lines with a part of each error.
var hostile = []struct{ line, want string }{
	{`{`, "json"},
	{`[]`, "want an object"},
	{`null`, "want an object"},
	{`{"id":"x"}`, "exactly one of"},
	{`{"ids":[1],"text":"w1"}`, "exactly one of"},
	{`{"ids":[]}`, "no tokens"},
	{`{"ids":"1"}`, `"ids" is of type str`},
	{`{"ids":[1,-1]}`, "ids[1]"},
	{`{"ids":[1,2147483648]}`, "ids[1]"},
	{`{"ids":[1,320]}`, "ids[1] is 320, outside the vocabulary of 320"},
	{`{"ids":[1.5]}`, "ids[0]"},
	{`{"text":7}`, `"text" is of type int`},
	{`{"text":""}`, "no tokens"},
	{`{"ids":` + strings.Repeat("[", 10000) + strings.Repeat("]", 10000) + `}`, "line"},
}
