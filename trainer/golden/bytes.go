package golden

import (
	"bytes"
	"encoding/json"
	"testing"
)

// ByteTokenizer returns the files of SmolLM2's tokenizer with a vocabulary of only the special tokens and the 256
// bytes. Tests that need many tokenizers, such as one for each chat template of a corpus, make one of these in a
// millisecond.
func ByteTokenizer(t testing.TB) map[string][]byte {
	t.Helper()
	folder := Folder(t, File(t, "tokenizer", "smollm2"), "tokenizer.json", "tokenizer_config.json")
	var whole map[string]any
	if err := json.Unmarshal(folder["tokenizer.json"], &whole); err != nil {
		t.Fatal(err)
	}
	vocabulary := map[string]int{}
	added := whole["added_tokens"].([]any)
	for i, a := range added { // their ids are 0, 1, ...
		vocabulary[a.(map[string]any)["content"].(string)] = i
	}
	further := rune(256) // byte-level tokenizers write unprintable bytes as the characters from here on
	for b := rune(0); b < 256; b++ {
		written := b
		if !(b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae) {
			written, further = further, further+1
		}
		vocabulary[string(written)] = len(added) + int(b)
	}
	model := whole["model"].(map[string]any)
	model["vocab"], model["merges"] = vocabulary, []string{}
	var small bytes.Buffer
	encoder := json.NewEncoder(&small)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(whole); err != nil {
		t.Fatal(err)
	}
	folder["tokenizer.json"] = small.Bytes()
	return folder
}
