package verify

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// medals are the parts of "What is the total Bronze of Chad, Senegal and South Chad in Games 1999, Medal table?"
var medals = []task.SubQuestion{
	{Question: "What is the Bronze of Chad in Games 1999, Medal table?", Answer: "0"},
	{Question: "What is the Bronze of Senegal in Games 1999, Medal table?", Answer: "1,003"},
	{Question: "What is the Bronze of South Chad in Games 1999, Medal table?", Answer: "4", Accepted: []string{"4", "four"}},
}

func TestAsked(t *testing.T) {
	for subtask, want := range map[string]int{
		"What is the Bronze of Senegal in Games 1999, Medal table?":              1,
		"the bronze of SENEGAL, games 1999 medal table":                          1,
		"Please look up: Bronze of Senegal in Games 1999, Medal table.":          1,
		"What is the Bronze of Chad in Games 1999, Medal table?":                 0,
		"What is the Bronze of South Chad in Games 1999, Medal table?":           2,
		"What is the Bronze of Nepal in Games 1999, Medal table?":                -1, // no part asks for it
		"What is the Bronze of Chad and Senegal in Games 1999, Medal table?":     -1, // two parts at once
		"What is the Silver of Senegal in Games 1999, Medal table?":              -1, // another column
		"What is the Bronze of Senegal?":                                         -1, // of which table?
		"What is the total Bronze of Chad, Senegal and South Chad in Games 1999": -1,
		"": -1,
	} {
		i, ok := Asked(medals, subtask, 1)
		if ok != (want >= 0) || ok && i != want {
			t.Errorf("%q asks for part %d, %v; want %d", subtask, i, ok, want)
		}
	}
}

// With less overlap a paraphrase will do, but never one that could be of another part.
func TestAskedByParaphrase(t *testing.T) {
	for subtask, want := range map[string]int{
		"How many bronze medals did Senegal win at the Games 1999?": 1,
		"How many bronze medals did Chad win at the Games 1999?":    0,
		"How many bronze medals did Nepal win at the Games 1999?":   -1,
		"What is the Bronze of Nepal in Games 1999, Medal table?":   -1,
		"How many did Senegal win?":                                 -1,
	} {
		i, ok := Asked(medals, subtask, 0.6)
		if ok != (want >= 0) || ok && i != want {
			t.Errorf("%q asks for part %d, %v; want %d", subtask, i, ok, want)
		}
	}
}

// Parts with the same words are distinguished by their text; otherwise the first is meant.
func TestAskedOfEqualWords(t *testing.T) {
	if i, ok := Asked([]task.SubQuestion{{Question: "Points of @ Boston?"}, {Question: "Points of Boston?"}}, "Points of Boston?", 1); !ok || i != 1 {
		t.Errorf("another twin, %d, is asked for", i)
	}
	twins := []task.SubQuestion{{Question: "Points of France in Spain?"}, {Question: "Points of Spain in France?"}}
	for subtask, want := range map[string]int{"Points of Spain in France": 1, "Points of France in Spain": 0, "France Spain points": 0} {
		if i, ok := Asked(twins, subtask, 1); !ok || i != want {
			t.Errorf("%q asks for part %d, %v", subtask, i, ok)
		}
	}
}

// TestAskedOfTables: each part of real questions asks for itself, or for a part with the same text.
func TestAskedOfTables(t *testing.T) {
	for _, file := range []string{"train.jsonl", "eval.jsonl"} {
		f, err := os.Open(golden.File(t, "tables", file))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for rows := json.NewDecoder(f); rows.More(); {
			var row struct {
				ID    string
				Parts []task.SubQuestion
			}
			if err := rows.Decode(&row); err != nil || len(row.Parts) == 0 {
				t.Fatalf("%s: %d parts, %v", row.ID, len(row.Parts), err)
			}
			for _, p := range row.Parts {
				if i, ok := Asked(row.Parts, p.Question, 1); !ok || row.Parts[i].Question != p.Question {
					t.Errorf("%s: %q asks for part %d, %v", row.ID, p.Question, i, ok)
				}
			}
		}
	}
}

func TestPartsScore(t *testing.T) {
	inner, err := New(Options{Kind: Normalized})
	if err != nil {
		t.Fatal(err)
	}
	v, ask := Parts(inner, 1), func(i int) string { return medals[i].Question }
	q := task.Query{Text: "What is the total?", Answer: "1007", Parts: medals, Columns: json.RawMessage("{}")}
	for _, c := range []struct {
		subtask, answer string
		want            float64
	}{
		{ask(0), "0", 1}, {ask(0), "0", 1}, {ask(1), "1003", 1}, {ask(1), "0", 0}, {ask(2), "Four.", 1}, {ask(2), "1007", 0},
		{"What is the Gold of Chad?", "0", 0}, {q.Text, "1007", 0},
	} {
		got, err := v.Score(t.Context(), Case{Query: q, Attempt: task.Attempt{Subtask: c.subtask, Answer: c.answer}})
		if err != nil || got != c.want {
			t.Errorf("%q answered %q scores %v, %v", c.subtask, c.answer, got, err)
		}
	}
	q.Parts = nil
	if got, err := v.Score(t.Context(), Case{Query: q, Attempt: task.Attempt{Subtask: ask(0), Answer: "0"}}); err == nil {
		t.Errorf("a question without parts scores %v", got)
	}
}
