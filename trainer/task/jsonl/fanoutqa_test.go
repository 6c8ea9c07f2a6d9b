package jsonl

import (
	"strings"
	"testing"
)

// Nested answers are not answers of FanOutQA, at any depth.
func TestNestedAnswers(t *testing.T) {
	for _, answer := range []string{`[["a"]]`, `{"k":["a"]}`, strings.Repeat("[", 9000) + strings.Repeat("]", 9000)} {
		if rows, err := readRows(write(t, `{"id":"a","question":"?","answer":`+answer+`,"decomposition":[]}`), DefaultFields(), layouts["fanoutqa"]); err == nil {
			t.Errorf("%.20s is read as %q", answer, rows[0].Answer)
		}
	}
}

// True and false are yes and no, in lists and objects, too.
func TestAnswersOfYesAndNo(t *testing.T) {
	for answer, want := range map[string]string{`true`: "yes", `false`: "no", `[true, "a", 2]`: "yes, a, 2", `{"b": false, "a": true}`: "a: yes, b: no", `"true"`: "true"} {
		rows, err := readRows(write(t, `{"id":"a","question":"?","answer":`+answer+`,"decomposition":[{"question":"b?","answer":`+answer+`}]}`), DefaultFields(), layouts["fanoutqa"])
		if err != nil || rows[0].Answer != want || rows[0].Parts[0].Answer != want {
			t.Errorf("%s: %+v, %v, want %q", answer, rows, err, want)
		}
	}
}
