package search

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/blevesearch/bleve/v2/analysis"
	"github.com/blevesearch/bleve/v2/analysis/lang/en"
	segments "github.com/blevesearch/bleve/v2/analysis/tokenizer/unicode"
	"github.com/blevesearch/bleve/v2/registry"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// Names of the analyzers of a corpus. A change of an analyzer requires a new indexFormat.
const (
	wordsAnalyzer = "mgrpo_words" // words without the English stop words
	looseAnalyzer = "mgrpo_loose" // all words, with and without their endings
)

func init() {
	for name, loose := range map[string]bool{wordsAnalyzer: false, looseAnalyzer: true} {
		err := registry.RegisterAnalyzer(name, func(_ map[string]any, cache *registry.Cache) (analysis.Analyzer, error) {
			return newWords(cache, loose)
		})
		if err != nil {
			panic(err)
		}
	}
}

// words is an analyzer that finds the terms of a text in any language. Spellings that differ in case, marks, width or
// apostrophes have the same terms. A word of several parts, such as 5km, has its own term and those of its parts.
type words struct {
	tokenizer analysis.Tokenizer
	stop      analysis.TokenFilter // applied before marks are removed, because the French "thé" is not a stop word
	loose     bool
}

func newWords(cache *registry.Cache, loose bool) (*words, error) {
	tokenizer, err := cache.TokenizerNamed(segments.Name)
	if err != nil {
		return nil, err
	}
	stop, err := cache.TokenFilterNamed(en.StopName)
	if err != nil {
		return nil, err
	}
	return &words{tokenizer, stop, loose}, nil
}

// Analyze returns the terms of a text. Their byte offsets are zero.
func (w *words) Analyze(text []byte) analysis.TokenStream {
	var out analysis.TokenStream
	add := func(term string) {
		out = append(out, &analysis.Token{Term: []byte(term), Position: len(out) + 1})
	}
	plain := norm.NFKC.String(strings.Map(plainMark, string(text)))
	for run, spaced := range runs(strings.Map(unicode.ToLower, plain)) {
		switch {
		case spaced && w.loose:
			for _, token := range w.tokenizer.Tokenize([]byte(run)) {
				looseTerms(fold(string(token.Term)), add)
			}
		case spaced:
			for _, token := range w.stop.Filter(w.tokenizer.Tokenize([]byte(run))) {
				wordTerms(fold(string(token.Term)), add)
			}
		case !w.loose:
			addBigrams(fold(run), add)
		}
	}
	for _, part := range compoundParts(plain) {
		part = strings.Map(unicode.ToLower, part)
		if w.loose {
			looseTerms(fold(part), add)
		} else if len(w.stop.Filter(analysis.TokenStream{{Term: []byte(part)}})) > 0 {
			wordTerms(fold(part), add)
		}
	}
	return out
}

// compoundParts returns the parts of the words that are written as one but have several: 5km, read_file and getUserName. A part ends
// between a letter and a digit, before a capital after a small letter, and at an underscore.
func compoundParts(text string) (out []string) {
	separates := func(r rune) bool { return unspaced(r) || r != '_' && !unicode.In(r, unicode.L, unicode.M, unicode.N) }
	for word := range strings.FieldsFuncSeq(text, separates) {
		var parts []string
		for piece := range strings.FieldsFuncSeq(word, func(r rune) bool { return r == '_' }) {
			start, before := 0, rune(0)
			for i, r := range piece {
				if unicode.IsMark(r) {
					continue // belongs to the letter before it
				}
				if before != 0 && (unicode.IsNumber(before) != unicode.IsNumber(r) || unicode.IsLower(before) && unicode.IsUpper(r)) {
					parts, start = append(parts, piece[start:i]), i
				}
				before = r
			}
			parts = append(parts, piece[start:])
		}
		if len(parts) > 1 || len(parts) == 1 && parts[0] != word {
			out = append(out, parts...)
		}
	}
	return out
}

// plainMark replaces typographic apostrophes with the ASCII apostrophe and drops invisible characters.
func plainMark(r rune) rune {
	switch {
	case strings.ContainsRune("’‘‛ʼʻʹ′´`׳＇", r):
		return '\''
	case unicode.Is(unicode.Cf, r) || r == 'ـ': // zero-width joiners, soft hyphens, the Arabic tatweel
		return -1
	}
	return r
}

// unspaced reports whether a letter belongs to a script without spaces between words.
func unspaced(r rune) bool {
	return r == 'ー' || unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar)
}

// runs yields the longest runs of letters that are unspaced, and of other text.
func runs(text string) func(yield func(run string, spaced bool) bool) {
	return func(yield func(string, bool) bool) {
		for text != "" {
			first, _ := utf8.DecodeRuneInString(text)
			kind := unspaced(first)
			end := strings.IndexFunc(text, func(r rune) bool { return unspaced(r) != kind })
			if end < 0 {
				end = len(text)
			}
			if !yield(text[:end], !kind) {
				return
			}
			text = text[end:]
		}
	}
}

// addBigrams adds the letters of a run and all pairs of neighbours.
func addBigrams(run string, add func(string)) {
	letters := []rune(run)
	for i := range letters {
		add(string(letters[i]))
		if i > 0 {
			add(string(letters[i-1 : i+1]))
		}
	}
}

// wordTerms adds a word. A Korean word contains particles and compounds, so wordTerms also adds its pairs of syllables.
func wordTerms(word string, add func(string)) {
	add(word)
	letters := []rune(word)
	if len(letters) < 3 || !hangul(letters) {
		return
	}
	for i := range letters[1:] {
		add(string(letters[i : i+2]))
	}
}

func hangul(letters []rune) bool {
	return !slices.ContainsFunc(letters, func(r rune) bool { return !unicode.Is(unicode.Hangul, r) })
}

// looseTerms adds a word and its parts at apostrophes, each with and without its ending.
func looseTerms(word string, add func(string)) {
	parts := strings.Split(word, "'")
	if len(parts) > 1 {
		parts = append(parts, strings.Join(parts, ""))
	}
	for _, part := range parts {
		if part != "" {
			stems(oneSpelling(part), add)
		}
	}
}

// spellings replaces two letters that stand for a letter with a mark: Müller and Mueller, Århus and Aarhus.
var spellings = strings.NewReplacer("ae", "a", "oe", "o", "ue", "u", "aa", "a")

func oneSpelling(word string) string {
	const article = "ال" // begins Arabic nouns
	if rest := strings.TrimPrefix(word, article); len([]rune(rest)) > 2 {
		word = rest
	}
	return spellings.Replace(word)
}

// stems adds a word and its prefixes without an ending of up to half of the word. Two forms of a word share one of
// these prefixes in every language whose endings come last.
func stems(word string, add func(string)) {
	const maxEnding, minStem = 4, 3
	letters := []rune(word)
	shortest := max(len(letters)-min(maxEnding, len(letters)/2), minStem)
	if hangul(letters) {
		shortest = max(len(letters)-maxEnding+1, 1) // a stem may be one syllable
	}
	add(word)
	for n := len(letters) - 1; n >= shortest; n-- {
		add(string(letters[:n]))
	}
}

// fold returns a lower-case word without marks and variants of letters.
func fold(word string) string {
	if !strings.ContainsFunc(word, func(r rune) bool { return r > unicode.MaxASCII }) {
		return word
	}
	var b strings.Builder
	for _, r := range norm.NFKD.String(cases.Fold().String(word)) {
		if s, ok := variants[r]; ok {
			b.WriteString(s)
		} else if !removable(r) {
			b.WriteRune(digit(hiragana(r)))
		}
	}
	return norm.NFC.String(b.String())
}

// removable reports whether a mark can be removed from a letter. The vowels of Indic scripts and the voicing of
// Japanese letters are marks, too, but words may differ only by them.
func removable(r rune) bool {
	voicing := r == '\u3099' || r == '\u309a'
	return !voicing && unicode.Is(unicode.Mn, r) && unicode.In(r, unicode.Inherited, unicode.Arabic, unicode.Hebrew, unicode.Syriac, unicode.Cyrillic)
}

// variants are letters without a decomposition in Unicode.
var variants = map[rune]string{
	'æ': "ae", 'œ': "oe", 'ø': "o", 'đ': "d", 'ð': "d", 'þ': "th", 'ł': "l", 'ħ': "h", 'ı': "i", 'ŧ': "t", 'ŋ': "n", 'ĸ': "k",
	'ґ': "г", 'ة': "ه", 'ى': "ي", 'ی': "ي", 'ک': "ك", 'ٱ': "ا", 'ہ': "ه", 'ۀ': "ه",
	'ך': "כ", 'ם': "מ", 'ן': "נ", 'ף': "פ", 'ץ': "צ",
}

// hiragana returns the hiragana letter for a katakana letter.
func hiragana(r rune) rune {
	if r >= 'ァ' && r <= 'ヶ' {
		return r - 'ァ' + 'ぁ'
	}
	return r
}

// digit returns the ASCII digit for a decimal digit of another script. Unicode has such digits in ranges of ten.
func digit(r rune) rune {
	for _, at := range unicode.Nd.R16 {
		if lo := rune(at.Lo); r >= lo && r <= rune(at.Hi) {
			return '0' + (r-lo)%10
		}
	}
	return r
}
