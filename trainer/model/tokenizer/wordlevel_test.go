package tokenizer

import (
	"slices"
	"strings"
	"testing"
)

var words = WordLevel{
	Vocab:        []string{"<pad>", "<unk>", "?", ".", "is", "<call>", "</call>", "Ada", "Bo", "naïve"},
	Unk:          "<unk>",
	Pad:          "<pad>",
	EOS:          "</call>",
	Special:      []string{"<call>"},
	ChatTemplate: "{{ messages[0].content }}",
}

func TestWordLevelRoundTrip(t *testing.T) {
	dir := t.TempDir()
	if err := WriteWordLevel(dir, words); err != nil {
		t.Fatal(err)
	}
	tok, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	text := "Ada is Bo . naïve <call> Ada </call> ?"
	ids := tok.Encode(text)
	if want := []int32{7, 4, 8, 3, 9, 5, 7, 6, 2}; !slices.Equal(ids, want) {
		t.Errorf("Encode: got %v, want %v", ids, want)
	}
	if got := tok.Decode(ids, false); got != text {
		t.Errorf("Decode: got %q, want %q", got, text)
	}
	if got, want := tok.Decode(ids, true), "Ada is Bo . naïve Ada ?"; got != want {
		t.Errorf("Decode without special tokens: got %q, want %q", got, want)
	}
	if got := stream(tok, ids, false); got != text {
		t.Errorf("Stream: got %q, want %q", got, text)
	}
	if got, want := tok.Encode(" Ada\tCleo\n\nis  "), []int32{7, 1, 4}; !slices.Equal(got, want) {
		t.Errorf("Encode of unknown words and white space: got %v, want %v", got, want)
	}
	if tok.VocabSize() != 10 || tok.Pad() != 0 || tok.Unk() != 1 || tok.EOS() != 6 || tok.BOS() != NoID {
		t.Errorf("size %d, pad %d, unk %d, eos %d, bos %d", tok.VocabSize(), tok.Pad(), tok.Unk(), tok.EOS(), tok.BOS())
	}
	if !slices.Equal(tok.StopIDs(), []int32{6}) || !tok.HasTemplate() {
		t.Errorf("stop %v, template %v", tok.StopIDs(), tok.HasTemplate())
	}
	if got, err := tok.Render(Chat{Messages: Messages(Message{Role: "user", Content: "Ada ?"})}); got != "Ada ?" {
		t.Errorf("Render: got %q, %v", got, err)
	}
}

func TestWordLevelRefuses(t *testing.T) {
	for want, change := range map[string]func(*WordLevel){
		"white space":           func(w *WordLevel) { w.Vocab = []string{"<unk>", "a b"} },
		"occurs twice":          func(w *WordLevel) { w.Vocab = []string{"<unk>", "a", "a"} },
		"not in the vocabulary": func(w *WordLevel) { w.BOS = "<s>" },
		`unknown word ""`:       func(w *WordLevel) { w.Unk = "" },
	} {
		w := words
		change(&w)
		if want != "not in the vocabulary" {
			w.Pad, w.EOS, w.Special = "", "", nil
		}
		if _, err := w.Files(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}
