package verify

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
)

// The pieces of the patterns for the words before a conclusion.
const (
	answerNoun = `(?:(?:^|[^\pL\pN])(?:answer|ans\.?|antwort|respuesta|resposta|risposta|réponse|jawaban)|答案|答え|回答|정답)`
	wordMarks  = "[*_`\"']*" // emphasis and quotes after a word
	verb       = `(?:\s+(?:correcta|correta|corretta|correcte|final|finale))?\s+(?:(?:is|ist|es|est|(?:should|would|must|will|has\s+to)\s+be)\b|[éè]\s)` +
		`(?:,?\s+(?:therefore|thus|hence|then|clearly|obviously|definitely|simply|indeed|(?:most\s+)?likely|probably)\b,?)?`
	rank = `(?:my|(?:the\s+)?(?:final|correct|right|best|only|most\s+(?:likely|suitable|appropriate)))`
)

var (
	// announced matches "answer is", "answer:" and a line that only has the title "Answer".
	announced = regexp.MustCompile(`(?im)` + answerNoun + wordMarks + `(?:` + verb + `\s*[:=]?|\s*[:=：→]|\s*[是为為は])\s*|` +
		`^[^\pL\n]*(?:(?-i:Answer|ANSWER)|(?:the|` + rank + `)(?:\s+` + rank + `)?\s+answer)[*_]*[ \t]*\n\s*`)
	// concluded matches other words before a conclusion.
	concluded = regexp.MustCompile(`(?i)(?:^|[^\pL\pN])(?:` + rank + `\s+(?:option|choice)` + wordMarks + `(?:` + verb + `\s*:?|\s*:)|` +
		`I(?:['’](?:d|ll)|\s+would|\s+will)?\s+(?:choose|pick|select|go\s+with)\b|conclusion` + wordMarks + `\s*:)\s*`)
	// therefore matches an answer that ends with a letter, as in "Therefore, B."
	therefore = regexp.MustCompile(`(?i)(?:^|[^\pL\pN])(?:therefore|thus|hence|so)[,:]?\s+((?:(?:option|choice)\s+)?[*_(]*(?-i:[A-Z])[)*_]*)[.!]?[*_]*\s*$`)
	// called matches an answer that ends with a sentence such as "So option B is correct.", or the same with a reason.
	called = regexp.MustCompile(`(?i)(?:^|[.!?\n])\W*(?:(?:so|thus|hence|therefore),?\s+)?(?:I\s+(?:think|believe)\s+(?:that\s+)?)?` +
		`(?:(?:the\s+)?(?:option|choice|answer)\s+)?[*_(]*([a-z])[*_)]*\s+is\s+(?:the\s+)?(?:right|correct|best)` +
		`(?:\s+(?:option|choice|answer|one))?(?:\W*$|(,?\s+(?:because|since|as)\b[^\n]*)\s*$)`)
	titled = regexp.MustCompile(`(?i)^\W*(?:the\s+)?(?:` + rank + `\s+)?answer` + wordMarks + `\s+`) // as in "Answer B"
	stated = regexp.MustCompile(`(?i)\s+is\s+the\s+(?:right\s+|correct\s+|final\s+)?answer\b`)

	answerOpen  = regexp.MustCompile(`(?i)<(?:final_)?answer>`)
	answerClose = regexp.MustCompile(`(?i)</(?:final_)?answer>`)
	answerKey   = regexp.MustCompile(`(?i)"(?:final_?)?answer"\s*:\s*(?:"((?:[^"\\]|\\.)*)"|(-?\d[\d.eE+-]*))`)
	jsonEscapes = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n")
)

// closedTag returns the content of the last <answer> tag that is closed before another begins.
func closedTag(answer string) (content string, ok bool) {
	end := len(answer)
	tags := answerOpen.FindAllStringIndex(answer, -1)
	for _, open := range slices.Backward(tags) {
		if at := answerClose.FindStringIndex(answer[open[1]:end]); at != nil {
			return answer[open[1] : open[1]+at[0]], true
		}
		end = open[0]
	}
	return "", false
}

// tagged returns the content of the last closed <answer> tag, the text after the last one if none is closed, or the value of the last JSON
// key "answer", or otherwise the whole answer. If words of a conclusion follow the key's JSON object, as after a quoted result of a tool,
// it returns the text after the object. Then otherwise is the key's value, which counts if the text states no result.
func tagged(answer string) (text, otherwise string) {
	if content, ok := closedTag(answer); ok {
		return content, ""
	}
	if tags := answerOpen.FindAllStringIndex(answer, -1); len(tags) > 0 {
		return answer[tags[len(tags)-1][1]:], ""
	}
	keys := answerKey.FindAllStringSubmatchIndex(answer, -1)
	if len(keys) == 0 {
		return answer, ""
	}
	at := keys[len(keys)-1]
	var value string
	if at[2] >= 0 {
		value = jsonEscapes.Replace(answer[at[2]:at[3]])
	} else { // a number
		value = answer[at[4]:at[5]]
	}
	later := afterObject(answer, at[0])
	if _, ok := boxedOrHash(later); ok || announced.MatchString(later) {
		return later, value
	}
	return value, ""
}

// afterObject returns the text after the JSON object that contains the index. It tries the first brace, and then the last brace before
// the index. It returns "" if there is no such object.
func afterObject(text string, index int) string {
	for _, begin := range []int{strings.IndexByte(text[:index], '{'), strings.LastIndexByte(text[:index], '{')} {
		var object json.RawMessage
		if begin >= 0 && json.NewDecoder(strings.NewReader(text[begin:])).Decode(&object) == nil && begin+len(object) > index {
			return text[begin+len(object):]
		}
	}
	return ""
}

// conclusions returns the parts of an answer that may state its result, the surest first. It reads the texts that [tagged] returns.
func conclusions(answer string) []string {
	text, otherwise := tagged(answer)
	if otherwise == "" {
		return stating(text)
	}
	return append(stating(text), otherwise)
}

// stating returns the parts of a text that may state its result, the surest first. The last \boxed{} or #### comes first, and then an
// "answer:" after the box. Without a mark it is the text after the last "answer is" or "answer:". Without these, the text after "the best
// option is" and similar words comes first, and then the text before "is the answer" or the whole text.
func stating(answer string) []string {
	if mark, ok := boxedOrHash(answer); ok {
		if inside, ok := afterAnnounced(mark); ok {
			mark = inside
		}
		if isBoxed(answer) {
			_, after := group(answer[strings.LastIndex(answer, `\boxed{`)+len(`\boxed{`):])
			if later, ok := afterAnnounced(after); ok {
				return []string{mark, later}
			}
		}
		return []string{mark}
	}
	if after, ok := afterAnnounced(answer); ok {
		return []string{after}
	}
	var texts []string
	if at := concluded.FindAllStringIndex(answer, -1); len(at) > 0 {
		texts = append(texts, answer[at[len(at)-1][1]:])
	} else if m := therefore.FindStringSubmatch(answer); m != nil {
		texts = append(texts, m[1])
	} else if m := called.FindStringSubmatch(answer); m != nil {
		texts = append(texts, m[1]+m[2])
	}
	if at := stated.FindStringIndex(answer); at != nil {
		return append(texts, answer[:at[0]])
	}
	return append(texts, answer[len(titled.FindString(answer)):])
}

// afterAnnounced returns the text after the last "answer is" or "answer:".
func afterAnnounced(text string) (string, bool) {
	at := announced.FindAllStringIndex(text, -1)
	if len(at) == 0 {
		return "", false
	}
	return text[at[len(at)-1][1]:], true
}

// boxedOrHash returns the content of the last \boxed{} or the rest of the line after the last ####, whichever comes later.
func boxedOrHash(s string) (string, bool) {
	boxed, hashes := strings.LastIndex(s, `\boxed{`), lastHashes(s)
	switch {
	case boxed < 0 && hashes < 0:
		return "", false
	case hashes > boxed:
		line, _, _ := strings.Cut(strings.TrimLeft(s[hashes:], "#"), "\n")
		return line, true
	}
	content, _ := group(s[boxed+len(`\boxed{`):])
	return content, true // a mark whose brace is never closed has no readable content
}

// heading matches a Markdown heading of level 4 to 6 that begins with a word, with text below it.
var heading = regexp.MustCompile(`^#{4,6}[ \t]+[*_]*(?:\d{1,2}[.)][ \t]+[*_]*)?\pL[^\n]*\n\s*\S`)

// lastHashes returns the index of the last #### that does not begin a heading, or -1.
func lastHashes(s string) int {
	for end := len(s); ; {
		i := strings.LastIndex(s[:end], "####")
		if i < 0 {
			return -1
		}
		begin := len(strings.TrimRight(s[:i], "#"))
		if begin > 0 && s[begin-1] != '\n' || !heading.MatchString(s[begin:]) {
			return i
		}
		end = begin
	}
}
