package jsonl

import (
	"errors"
	"strings"
	"testing"
)

// Step 10 of a decomposition is not step 1 with a nought.
func TestMuSiQueReferences(t *testing.T) {
	steps := strings.Repeat(`{"question":"x","answer":"first"},`, 9) + `{"question":"y","answer":"tenth"},{"question":"#10 after #1","answer":"z"}`
	row, err := readRows(write(t, `{"id":"a","question":"?","answer":"z","question_decomposition":[`+steps+`]}`), DefaultFields(), layouts["musique"])
	if err != nil || row[0].Parts[10].Question != "tenth after first" {
		t.Errorf("%+v, %v", row, err)
	}
	for _, c := range []struct{ question, want string }{
		{"who produced #2 by #1", "who produced #1 Record by Big Star"}, // what stands in an answer is not replaced
		{"who wore #25 and #0", "who wore #25 and #0"},
	} {
		room := maxLine
		if got, err := filledIn(c.question, []string{"Big Star", "#1 Record"}, &room); err != nil || got != c.want {
			t.Errorf("%q, %v, want %q", got, err, c.want)
		}
	}
	room := maxLine
	if _, err := filledIn(strings.Repeat("#1", 1000), []string{strings.Repeat("x", maxLine/100)}, &room); !errors.Is(err, errTooLong) {
		t.Errorf("a question that outgrows a row: %v", err)
	}
}
