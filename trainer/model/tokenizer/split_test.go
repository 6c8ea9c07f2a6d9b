package tokenizer

import (
	"strings"
	"testing"
)

// TestSplit compares with the pieces that the tokenizers library makes of each text, separated by |.
func TestSplit(t *testing.T) {
	for _, c := range []struct {
		name string
		step splitter
		want string
	}{
		{"gpt2", scanners[patternGPT2], "He|'s|'|SAY| don|'t|  | x|1234| 56|!?|\n\n|\t|a| \n| _"},
		{"gpt2", scanners[patternGPT2], "a|\u3000| b| é漢字|²|…"},
		{"qwen2", scanners[patternQwen2], "He|'s|'S|AY| don|'T|  | x|1|2| |5|!?\n\n|\ta| \n| _'|LLex|'ll"},
		{"qwen2", scanners[patternQwen2], "'ſ|a| é|\u3000漢字|²|…| \r\n \n| x| |\u00a0y"},
		{"llama3", scanners[patternLlama3], "x|123|456|7| |89| \n\n|  "},
		{"digits", splitDigits, "ab|1|2| |²|x"},
		{"digit runs", splitDigitRuns, "ab|12| |²3|x"},
		{"words", splitWords, "ab.,| \n|x"},
		{"words and marks", splitWordsAndMarks, "ab_1é|.,| |x|!|y"},
	} {
		got := cutAll(step{split: c.step}, strings.ReplaceAll(c.want, "|", ""))
		if joined := strings.Join(got, "|"); joined != c.want {
			t.Errorf("%s:\n got %q\nwant %q", c.name, joined, c.want)
		}
	}
}

// TestLongestAddedToken: if several added tokens match, the longest one wins, regardless of their order in the file.
func TestLongestAddedToken(t *testing.T) {
	for _, order := range [][]string{{"<a>", "<a>bc", "<a>b"}, {"<a>bc", "<a>b", "<a>"}} {
		var m matcher
		for i, content := range order {
			m.add(addedToken{id: int32(i), content: content})
		}
		for text, want := range map[string]string{"<a>bcd": "<a>bc", "<a>bd": "<a>b", "<a>": "<a>", "<a>c": "<a>"} {
			if got := m.longest(text); got == nil || got.content != want {
				t.Errorf("%v: %q begins with %v, want %q", order, text, got, want)
			}
		}
		if got := m.longest("<"); got != nil {
			t.Errorf("%v: %v", order, got)
		}
	}
}
