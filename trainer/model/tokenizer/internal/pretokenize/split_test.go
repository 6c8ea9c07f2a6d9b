package pretokenize

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestSplit compares with the pieces that the tokenizers library makes of each text, separated by |.
func TestSplit(t *testing.T) {
	for _, c := range []struct {
		name string
		step splitter
		want string
	}{
		{"gpt2", scanners[PatternGPT2], "He|'s|'|SAY| don|'t|  | x|1234| 56|!?|\n\n|\t|a| \n| _"},
		{"gpt2", scanners[PatternGPT2], "a|\u3000| b| é漢字|²|…"},
		{"qwen2", scanners[PatternQwen2], "He|'s|'S|AY| don|'T|  | x|1|2| |5|!?\n\n|\ta| \n| _'|LLex|'ll"},
		{"qwen2", scanners[PatternQwen2], "'ſ|a| é|\u3000漢字|²|…| \r\n \n| x| |\u00a0y"},
		{"llama3", scanners[PatternLlama3], "x|123|456|7| |89| \n\n|  "},
		{"digits", splitDigits, "ab|1|2| |²|x"},
		{"digit runs", splitDigitRuns, "ab|12| |²3|x"},
		{"words", splitWords, "ab.,| \n|x"},
		{"words and marks", splitWordsAndMarks, "ab_1é|.,| |x|!|y"},
	} {
		got := cutAll(Step{split: c.step}, strings.ReplaceAll(c.want, "|", ""))
		if joined := strings.Join(got, "|"); joined != c.want {
			t.Errorf("%s:\n got %q\nwant %q", c.name, joined, c.want)
		}
	}
}

// TestRegex compares with the pieces that the tokenizers library makes with Oniguruma, separated by |.
func TestRegex(t *testing.T) {
	for pattern, want := range map[string]string{
		`\w+`: "x²|+|½| |y| |Ⓐb| |हिन्दी", `[\w]+`: "x|²|Ⓐ", `\W+`: "a²½| ,|Ⓐ", `\b`: "हिन्दी| |2½|, |x", `\B`: "ह|ि|2|½,|,x",
		`\d{1,3}(?=(?:\d{3})*\b)`: "1234567\u0903 |12", `a(?m:.)b.`: "a\nba|\nb\n", `(?im)A.|(?-m:b.)`: "a\n|b\n|ba",
		`a(?m)b|c.`: "ab|ac\n|c\n", `(?:a(?i)b|C)c|(?i)(?m)d.`: "aBc|acc|bc|D\n", `(x(?i)y(?m).|z)(?-i)y`: "xY\ny|xzyzyxZy",
	} {
		p, err := CompileRegex(pattern)
		if err != nil {
			t.Fatal(err)
		}
		got := cutAll(Split(p, Isolated, false), strings.ReplaceAll(want, "|", ""))
		if joined := strings.Join(got, "|"); joined != want {
			t.Errorf("%s:\n got %q\nwant %q", pattern, joined, want)
		}
	}
}

// FuzzSplit checks that the pieces of a text, joined, are the text.
func FuzzSplit(f *testing.F) {
	for _, s := range []string{"don't 'S a  b\r\n\n c", "'ſ '", "１２３4 ５", " \u0085\u3000x", "!?\r\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) {
			return
		}
		steps := []splitter{splitDigits, splitDigitRuns, splitWords, splitWordsAndMarks}
		for _, patterns := range []map[string]splitter{scanners, isolators} {
			for _, s := range patterns {
				steps = append(steps, s)
			}
		}
		for i, s := range steps {
			var joined strings.Builder
			Apply([]Step{{split: s}}, text, true, func(p string) {
				if p == "" || !utf8.ValidString(p) {
					t.Errorf("splitter %d: a piece %q", i, p)
				}
				joined.WriteString(p)
			})
			if joined.String() != text {
				t.Errorf("splitter %d: got %q, want %q", i, joined.String(), text)
			}
		}
	})
}

// FuzzScanners compares each hand-written splitter with its pattern in the regular expression engine.
func FuzzScanners(f *testing.F) {
	for _, s := range []string{"don't 'S aBcDe ÀÉéǅx  b\r\n\n c/d//", "'ſ 'LL x'Re", "１２３4 ５67890", " \u0085\u3000x", "!?\r\n/", "e\u0301\u0301E\u0301x",
		"中文ABC日本語ab한국", "\u0301a \u0301", "#tag @x\x00y\x01\x02", " \n \t x", "ªʰǅǅa", "\u20dd1"} {
		f.Add(s)
	}
	engines := map[string]Pattern{}
	for _, patterns := range []map[string]splitter{scanners, isolators} {
		for text := range patterns {
			r, err := CompileRegex(text)
			if err != nil {
				f.Fatal(err)
			}
			engines[text] = r
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "\ufffd")
		for name, r := range engines {
			scan := scanners[name]
			if scan == nil {
				scan = isolators[name]
			}
			got, want := cutAll(Step{split: scan}, text), cutAll(Split(r, Isolated, false), text)
			if !slices.Equal(got, want) {
				t.Errorf("%s\n%q: got %q, want %q", name, text, got, want)
			}
		}
	})
}

func cutAll(s Step, text string) (pieces []string) {
	Apply([]Step{s}, text, true, func(p string) { pieces = append(pieces, p) })
	return pieces
}
