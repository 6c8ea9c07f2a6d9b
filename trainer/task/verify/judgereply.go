package verify

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/text/width"

	"github.com/mgrpo/mgrpo/trainer/agent"
)

// errUnfinished is the error for a reply that ends inside its thinking.
var errUnfinished = errors.New("the reply ends inside its thinking")

var errNoScore = errors.New(`no score: it must reply "Score: N"`)

// thinkingOpen and thinkingClose match the marks around the thinking that some servers leave in a reply.
var (
	thinkingOpen  = regexp.MustCompile(`(?im)^[ \t]*(?:` + marks(0) + `|<\|channel\|>analysis)`)
	thinkingClose = regexp.MustCompile(`(?i)` + marks(1) + `|<\|channel\|>final<\|message\|>`)
)

// Other spaces and slashes, and HTML's emphasis, do not change what a reply states.
var (
	thinSpaces = strings.NewReplacer("\u00a0", " ", "\u202f", " ", "\u2007", " ", "\u2009", " ", "\u200b", "", "\u2060", "", "\ufeff", "",
		"⁄", "/", "∕", "/")
	inlineTag = regexp.MustCompile(`(?i)</?(?:b|strong|i|em|u|code|mark|span)(?:\s[^<>]*)?>`)
)

// marks returns a regular expression for the opening (0) or closing (1) marks of thinking.
func marks(which int) string {
	var all []string
	for _, pair := range agent.ThinkingMarks {
		all = append(all, regexp.QuoteMeta(pair[which]))
	}
	return strings.Join(all, "|")
}

// outsideThinking returns the part of a reply after its thinking. An opening tag counts only at the beginning of a
// line, because elsewhere the judge may quote the answer. A closing tag counts even without an opening tag, because
// many templates write the opening tag into the prompt.
func outsideThinking(reply string) (string, error) {
	if closed := thinkingClose.FindAllStringIndex(reply, -1); len(closed) > 0 {
		reply = reply[closed[len(closed)-1][1]:]
	}
	if thinkingOpen.MatchString(reply) {
		return "", errUnfinished
	}
	return reply, nil
}

// statedScore is one statement of a score in a reply.
type statedScore struct {
	at    int     // index in the reply
	score float64 // on the scale
	err   error   // the reason why it cannot be read
	of    string  // the scored thing, such as "f1" or "maximum"; "": the answer
	words bool    // words follow it on its line, as in a legend: "Score: 0 - wrong"
	line  bool    // it begins its line
	final bool    // it is called final, overall or total
}

// readScore returns the last score that a judge's reply states outside of its thinking, divided by the scale. A
// statement is a line "Score: N", the words "score: N" elsewhere, or a JSON object with the key "score". A reply that
// consists only of a number is a statement, too.
func readScore(reply string, scale float64) (float64, error) {
	text, err := outsideThinking(reply)
	if err != nil {
		return 0, err
	}
	text = inlineTag.ReplaceAllString(thinSpaces.Replace(width.Fold.String(text)), "")
	objects, rest := scoresInJSON(text, scale)
	all := append(objects, scoresInText(rest, scale)...)
	if m := bareScore.FindStringSubmatch(text); len(all) == 0 && m != nil && (aloneTail.MatchString(m[2]) || strings.TrimSpace(m[2]) == "%") {
		all = append(all, readStated(0, "", m[1], m[2], scale))
	}
	// A key outside of every readable JSON object: the text after it may belong to another key.
	if quotedKey.MatchString(rest) && slices.ContainsFunc(all, func(s statedScore) bool { return s.err != nil || s.score != all[0].score }) {
		return 0, errors.New("its JSON cannot be read and contains several scores")
	}
	all = filter(all, func(s statedScore) bool { return s.of != supposition })
	if len(all) == 0 {
		return 0, errNoScore
	}
	// Scores of other things count only if the reply has no score of the answer. They must then be equal.
	ofAnswer := filter(all, func(s statedScore) bool { return s.of == "" })
	if len(ofAnswer) == 0 {
		for _, s := range all {
			if s.err == nil && s.score != all[0].score {
				return 0, fmt.Errorf(`several scores (%s, %s), and no "Score: N" for the whole`, quoted(all[0].of), quoted(s.of))
			}
		}
		ofAnswer = all
	}
	if ofAnswer, err = withoutLegend(ofAnswer); err != nil {
		return 0, err
	}
	last := ofAnswer[0]
	for _, s := range ofAnswer {
		if s.at >= last.at {
			last = s
		}
	}
	return last.score / scale, last.err
}

// filter returns the statements for which keep returns true.
func filter(all []statedScore, keep func(statedScore) bool) (kept []statedScore) {
	for _, s := range all {
		if keep(s) {
			kept = append(kept, s)
		}
	}
	return kept
}

// withoutLegend removes scores with words after them if several of them differ: they explain what each score means, or are scores
// of parts. Such a score within a line, after a different score alone on its line, is an error.
func withoutLegend(all []statedScore) ([]statedScore, error) {
	plain := filter(all, func(s statedScore) bool { return !s.words || s.final })
	worded := filter(all, func(s statedScore) bool { return s.words && !s.final && s.err == nil })
	if slices.ContainsFunc(worded, func(s statedScore) bool { return s.score != worded[0].score }) {
		if len(plain) == 0 {
			return nil, fmt.Errorf(`several scores with words behind them, such as %v and %v, and no "Score: N" alone on its line`, worded[0].score,
				worded[len(worded)-1].score)
		}
		return plain, nil
	}
	for _, w := range worded {
		for _, p := range plain {
			if p.err == nil && p.line && !w.line && p.at < w.at && p.score != w.score {
				return nil, fmt.Errorf("the score %v, and further on %v", p.score, w.score)
			}
		}
	}
	return all, nil
}

var (
	bareScore = regexp.MustCompile(`^[\s*_"'` + "`" + `]*([-+]?(?:\d+(?:\.\d+)?|\.\d+))([^\n]*?)[\s*_"'` + "`" + `.]*$`)
	quotedKey = regexp.MustCompile(`(?i)["']score["']\s*:`)

	// label matches the word score with its colon and the characters that may be between them: quotes, emphasis, and
	// the scale in brackets.
	label = regexp.MustCompile("(?i)\\bscore\\b[\"'*_`]*[ \\t]*(\\([^()\\n]{0,60}\\)|\\[[^\\[\\]\\n]{0,60}\\]|/[ \\t]*\\d+(?:\\.\\d+)?)?[\"'*_`]*[ " +
		"\\t]*[:=：][\"'*_`\\[<({$ \\t]*(?:\\\\boxed *\\{ *)?")
	// lineLabel matches the text before a label that begins its line.
	lineLabel  = regexp.MustCompile(`(?i)^[\s*_#>"'` + "`" + `-]*(?:(?:final|overall|total|my)\s+)?$`)
	finalLabel = regexp.MustCompile(`(?i)\b(?:final|overall|total)["'*_]*\s+["'*_]*$`)
	unitBehind = regexp.MustCompile(`(?i)^["'*_\x60\]>)}]*\s*(?:points?|stars?|marks?)\b`)
	words      = regexp.MustCompile(`\pL`)
	// onNextLine matches the figure of a label that is alone on its line: the figure is alone on the next line.
	onNextLine = regexp.MustCompile("^\\s*\\n[\\s\"'*_`]*([-+]?(?:\\d+(?:\\.\\d+)?|\\.\\d+))([^\\n]*)")
	figureHere = regexp.MustCompile(`^([-+]?(?:\d+(?:\.\d+)?|\.\d+))([^\n]*)`)
	aloneTail  = regexp.MustCompile("^[\"'*_`\\]>)}.]*\\s*(?:(?:/|out\\s+of\\b|of\\b)\\s*\\d+(?:\\.\\d+)?)?[\\s\"'*_`\\]>)}.]*$")
)

var (
	wordBefore = regexp.MustCompile(`(?i)([\pL\d][\pL\d'’/-]*)["'*_\x60]*(?:[ \t]+["'*_\x60]*|[-‐‑–])$`)
	// ofTheAnswer matches words before "score" that do not make it the score of something else.
	ofTheAnswer = regexp.MustCompile(`(?i)^(?:final|overall|total|my|the|an?|its?|your|this|of|so|thus|therefore|hence|and|or|is|be|as|with|` +
		`give|gives|assign|award|new|revised|updated|corrected|again|then|now|answer|answer's|answer’s)$`)
	// supposed matches text after a figure that is not a verdict: a condition, or the meaning of the figure.
	supposed = regexp.MustCompile(`(?i)^["'*_\x60\])]*\s*(?:(?:only|if|when|unless|would|could|should|requires?|needs?|means?)\b|` +
		`=\s*(?:[^\d\s]|\d+(?:\.\d+)?\s*\pL|$))`)
	inQuotes = regexp.MustCompile("[\"'“‘«\x60][*_]*$")
)

// supposition is the value of statedScore.of for a score with a condition, which is not a score of the answer.
const supposition = "a supposition"

// scoreOfWhat returns the thing that a label scores: the word before it on its line, a quotation, or "" for the answer.
func scoreOfWhat(line string) string {
	if strings.HasPrefix(strings.TrimSpace(line), ">") || inQuotes.MatchString(line) && !lineLabel.MatchString(line) {
		return "a quotation"
	}
	if m := wordBefore.FindStringSubmatch(line); m != nil && !ofTheAnswer.MatchString(m[1]) {
		return m[1]
	}
	return ""
}

const (
	maxLabels = 1000 // labels in a reply
	maxAround = 500  // bytes of a line that are read before a label, and after it
)

// scoresInText returns the statements of a text without JSON objects, in order.
func scoresInText(text string, scale float64) (found []statedScore) {
	labels := label.FindAllStringSubmatchIndex(text, maxLabels+1)
	if len(labels) > maxLabels {
		return []statedScore{{err: fmt.Errorf("it states more than %d scores", maxLabels)}}
	}
	for _, at := range labels {
		bracket := ""
		if at[2] >= 0 {
			bracket = text[at[2]:at[3]]
		}
		before, after := text[strings.LastIndexByte(text[:at[0]], '\n')+1:at[0]], text[at[1]:min(len(text), at[1]+maxAround)]
		if len(before) > 2*maxAround {
			before = before[:maxAround] + before[len(before)-maxAround:]
		}
		if m := figureHere.FindStringSubmatch(after); m != nil {
			s := readStated(at[0], bracket, m[1], m[2], scale)
			s.line, s.final = lineLabel.MatchString(before), finalLabel.MatchString(before)
			tail := unitBehind.ReplaceAllString(outOf.ReplaceAllString(m[2], ""), "")
			s.words = words.MatchString(tail)
			if s.of = scoreOfWhat(before); supposed.MatchString(tail) {
				s.of = supposition
			}
			found = append(found, s)
		} else if m := onNextLine.FindStringSubmatch(after); m != nil && aloneTail.MatchString(m[2]) {
			found = append(found, readStated(at[0], bracket, m[1], m[2], scale))
		} else if lineLabel.MatchString(before) {
			stated, _, _ := strings.Cut(strings.TrimSpace(after), "\n")
			found = append(found, statedScore{at: at[0], err: fmt.Errorf("the score %s is not a number", quoted(stated))})
		}
	}
	return found
}

var (
	lastNumber = regexp.MustCompile(`(\d+(?:\.\d+)?)[^\d]*$`)
	// best matches words for the best score in Chinese, Japanese and Korean.
	best = `(?:满分|滿分|満点|满点|만점)`
	// outOf matches a scale directly after the figure: /10, out of 10, out of a possible ten, (max: 10), von 10.
	outOf = regexp.MustCompile(`(?i)^[\s"'*_\x60\]>)}]*(?:(?:points?|stars?|marks?)\s*)?[(\[]?\s*(?:/|(?:out\s+of|of|von|sur|de|max(?:imum)?)\b[\s:]*|` +
		best + `[\s:]*)\s*(?:(?:a|possible|maximum|max|total|score|of)[\s:=]+)*["'*_\x60]*` +
		`(\d+(?:\.\d+)?|(?:three|four|five|six|seven|eight|nine|ten|twelve|twenty|fifty|hundred)\b)`)
	inWords = map[string]string{"three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10", "twelve": "12",
		"twenty": "20", "fifty": "50", "hundred": "100"}
	characterUnit = regexp.MustCompile(`^ ?[分点點점]`) // Chinese, Japanese and Korean for points
	// furtherFigure matches a figure after a space: 1 000, 3 1/2.
	furtherFigure = regexp.MustCompile(`^[ \t]+[\d½¼¾]`)
	// continued matches text that makes a figure the beginning of a longer one: a decimal comma, an exponent, a range,
	// a correction (9 -> 3), a unit, a sum.
	continued = regexp.MustCompile(`(?i)^(?:[.,;:]\d|\s*(?:[-–—−~±+*×^/:→⇒]|[-=]+>|to\b|or\b|and\b)\s*[\d.]|` +
		`,?\s*(?:minus|less|plus|times)\b|[±+~^½¼¾]|\pL|_\pL|\d)`)
	percented = regexp.MustCompile(`(?i)^\s*(?:%|per ?cent\b)`)
	// otherScale matches a scale that is named after the figure.
	otherScale = regexp.MustCompile(`(?i)\bscale\s+(?:of|from|is)\s+(?:(?:from\s+)?\d+(?:\.\d+)?\s*(?:to|-|–|—)\s*)?(\d+(?:\.\d+)?)|` +
		`\b(\d+(?:\.\d+)?)[- ]point\s+scale|^[^.]*?[\[(]\s*\d+\s*(?:to|-|–|—)\s*(\d+)\s*[\])]|` +
		best + `[\s:为為是]*(\d+(?:\.\d+)?)|(\d+(?:\.\d+)?)\s*[分点點점]?\s*` + best)
)

// readStated reads a figure with the rest of its line, and with the bracket of its label, which may name the scale.
func readStated(at int, bracket, figure, tail string, scale float64) statedScore {
	text := quoted(strings.Trim(figure+tail, " *_`\"'"))
	bad := func(format string, args ...any) statedScore {
		return statedScore{at: at, err: fmt.Errorf("the score %s "+format, append([]any{text}, args...)...)}
	}
	score, err := strconv.ParseFloat(figure, 64)
	if err != nil {
		return statedScore{at: at, err: err}
	}
	if m := lastNumber.FindStringSubmatch(bracket); m != nil && !sameNumber(m[1], scale) {
		return bad("is on another scale: %s; the judge's scale is %v", bracket, scale)
	}
	rest, other := characterUnit.ReplaceAllString(tail, ""), false
	if furtherFigure.MatchString(rest) {
		return bad("is not a plain number")
	}
	if m := outOf.FindStringSubmatch(rest); m != nil {
		rest, other = characterUnit.ReplaceAllString(rest[len(m[0]):], ""), !sameNumber(m[1], scale)
	} else if percent := percented.FindString(rest); percent != "" {
		rest, other = rest[len(percent):], scale != 100
	}
	if m := otherScale.FindStringSubmatch(rest); other || m != nil && !sameNumber(strings.Join(m[1:], ""), scale) {
		return bad("is on another scale than the judge's, %v", scale)
	}
	if continued.MatchString(strings.TrimLeft(rest, "*_`\"'")) {
		return bad("is not a plain number")
	}
	return onScale(at, score, scale)
}

func sameNumber(text string, scale float64) bool {
	v, err := strconv.ParseFloat(cmp.Or(inWords[strings.ToLower(text)], text), 64)
	return err == nil && v == scale
}

// onScale returns the statement of a score, with an error if the score is outside the scale.
func onScale(at int, score, scale float64) statedScore {
	s := statedScore{at: at, score: score}
	if !(score >= 0) || score > scale || math.IsInf(score, 0) {
		s.err = fmt.Errorf("score %v is outside 0 to %v: set the judge's scale to its best score", score, scale)
	}
	return s
}

// maxObjects is the number of places in a reply where readers look for a JSON object.
const maxObjects = 64

var objectOpen = regexp.MustCompile(`\{\s*["}]`)

// scoresInJSON finds the JSON objects of a text that contain a score. It also returns the text with all objects blanked
// out.
func scoresInJSON(text string, scale float64) (found []statedScore, rest string) {
	blanked := []byte(text)
	at, previous := 0, 0 // previous: the end of the object before
	for range maxObjects {
		open := objectOpen.FindStringIndex(text[at:])
		if open == nil {
			break
		}
		at += open[0]
		dec := json.NewDecoder(strings.NewReader(text[at:]))
		dec.UseNumber()
		var object map[string]any
		if dec.Decode(&object) != nil || len(object) == 0 {
			at++
			continue
		}
		end := at + int(dec.InputOffset())
		copy(blanked[at:end], bytes.Repeat([]byte(" "), end-at))
		if s, ok := scoreOf(object, at, scale); ok {
			if n := len(found); n > 0 && s.err == nil && found[n-1].score != s.score && strings.TrimSpace(text[previous:at]) == "," {
				s.err = errors.New("its JSON is a list with several scores")
			}
			found = append(found, s)
		}
		at, previous = end, end
	}
	return found, string(blanked)
}

// wholeScore matches a key for the score of the whole answer.
var wholeScore = regexp.MustCompile(`^(?:final|overall|total)[ _-]?score$`)

// scaleKeys are the keys next to a score that name its scale, without the signs that bareKey removes. The value contains the best score.
var (
	scaleKeys = []string{"maxscore", "maximumscore", "max", "maximum", "outof", "scale", "scorerange"}
	bareKey   = strings.NewReplacer("_", "", "-", "", " ", "")
)

// scoreOf reads the score of an object: its own score, or otherwise the only score of the objects in it.
func scoreOf(object map[string]any, at int, scale float64) (statedScore, bool) {
	bad := func(format string, args ...any) (statedScore, bool) {
		return statedScore{at: at, err: fmt.Errorf(format, args...)}, true
	}
	lower := map[string]any{}
	for key, v := range object {
		name := wholeScore.ReplaceAllString(strings.ToLower(key), "score")
		if before, twice := lower[name]; twice && name == "score" && fmt.Sprint(before) != fmt.Sprint(v) {
			return bad("its JSON has several scores for the whole")
		}
		lower[name] = v
	}
	value, own := lower["score"]
	if !own {
		switch inner := scoresWithin(slices.Collect(maps.Values(object)), at, scale); len(inner) {
		case 0:
			return statedScore{}, false
		case 1:
			return inner[0], true
		}
		return bad(`its JSON has several scores, but no "score" for the whole`)
	}
	for key, v := range lower {
		if slices.Contains(scaleKeys, bareKey.Replace(key)) && !endsAt(v, scale) {
			return bad("its %s is %v, but the judge's scale is %v", key, quoted(fmt.Sprint(v)), scale)
		}
	}
	switch v := value.(type) {
	case json.Number:
		score, err := v.Float64()
		if err != nil {
			return statedScore{at: at, err: err}, true
		}
		return onScale(at, score, scale), true
	case string:
		if m := bareScore.FindStringSubmatch(v); m != nil {
			return readStated(at, "", m[1], m[2], scale), true
		}
	}
	return bad(`its "score" is not a number: %s`, quoted(fmt.Sprint(value)))
}

var anyNumber = regexp.MustCompile(`\d+(?:\.\d+)?(?:[eE][+-]?\d+)?`)

// endsAt reports whether the scale is the largest number of a value, which may be a number, a text, a list or an object. A value without
// numbers names no scale.
func endsAt(value any, scale float64) bool {
	numbers := anyNumber.FindAllString(fmt.Sprint(value), -1)
	largest := 0.0
	for _, number := range numbers {
		if v, err := strconv.ParseFloat(number, 64); err == nil {
			largest = max(largest, v)
		}
	}
	return len(numbers) == 0 || largest == scale
}

// scoresWithin returns the scores of the objects in a list, and in the lists in it.
func scoresWithin(values []any, at int, scale float64) (found []statedScore) {
	for _, value := range values {
		switch v := value.(type) {
		case map[string]any:
			if s, ok := scoreOf(v, at, scale); ok {
				found = append(found, s)
			}
		case []any:
			found = append(found, scoresWithin(v, at, scale)...)
		}
	}
	return found
}
