package verify

import (
	"regexp"
	"strings"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// optionOf returns the index of the option with this text, or -1. It compares the texts as written first, and then with less and less
// detail. With less detail a text may equal several options, and then it names none of them. A capital letter that is no option's text
// is the letter of an option, even if an option is the same letter in lower case.
func optionOf(text string, choices []string) int {
	index := func(want string, treat func(string) string) (found int) {
		found = -1
		for i, choice := range choices {
			if want == "" || treat(choice) != want {
				continue
			}
			if found >= 0 && strings.TrimSpace(choices[found]) != strings.TrimSpace(choice) {
				return -1
			}
			if found < 0 {
				found = i
			}
		}
		return found
	}
	for _, treat := range []func(string) string{strings.TrimSpace, bareOption} {
		if i := index(treat(text), treat); i >= 0 {
			return i
		}
	}
	if m := soleCapital.FindStringSubmatch(text); m != nil && int(m[1][0]-'A') < len(choices) {
		if i := index(m[1], strings.TrimSpace); i >= 0 {
			return i
		}
		return int(m[1][0] - 'A')
	}
	for _, treat := range []func(string) string{foldedOption, tightOption, normalize} {
		if i := index(treat(text), treat); i >= 0 {
			return i
		}
	}
	return -1
}

var (
	soleCapital = regexp.MustCompile(`^[\s*_(]*([A-Z])[\s*_).:]*$`)
	aroundSigns = regexp.MustCompile(`\s*([^\pL\pN\s])\s*`)
	latexForms  = strings.NewReplacer(`\dfrac`, `\frac`, `\tfrac`, `\frac`, `\left`, "", `\right`, "", `\,`, "", `\ `, "", `\!`, "", `\%`, "%", `\$`, "$")
)

// bareOption removes LaTeX's delimiters and text commands, quotes, emphasis, and the point at the end.
func bareOption(s string) string {
	s = latexText.ReplaceAllString(withoutMath(norm.NFKC.String(s)), " $1 ")
	s = strings.Trim(strings.TrimRight(strings.TrimSpace(s), ".*_ "), "*_\"'` ")
	return strings.Join(strings.Fields(s), " ")
}

// foldedOption also removes differences of case.
func foldedOption(s string) string { return cases.Fold().String(bareOption(s)) }

// tightOption also removes the spaces around signs, and forms of LaTeX that only look different.
func tightOption(s string) string {
	return aroundSigns.ReplaceAllString(latexForms.Replace(foldedOption(s)), "$1")
}

var (
	dollars     = regexp.MustCompile(`(^|[^\\$\pN])\$([^\s$](?:[^$]*[^\s$\\])?)\$([^\pN$]|$)`)
	otherDollar = regexp.MustCompile(`(?s)\$\$\s*([^$]+?)\s*\$\$|\\\(\s*(.*?)\s*\\\)|\\\[\s*(.*?)\s*\\\]`)
)

// withoutMath removes the delimiters $...$, $$...$$, \(...\) and \[...\] of LaTeX. A single $ and the $ of $5-$10 are currencies.
func withoutMath(s string) string {
	s = otherDollar.ReplaceAllString(s, "$1$2$3")
	for range 2 { // neighbours share the character between them
		s = dollars.ReplaceAllString(s, "$1$2$3")
	}
	return s
}
