package play

import (
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/agent/tool/search"
	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/task/jsonl"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
)

// TestTables checks on real questions of every kind that a planner without mistakes reaches the
// reference answer and asks only for the parts. A researcher quotes from the corpus.
func TestTables(t *testing.T) {
	file := func(name string) string { return golden.File(t, "tables", name) }
	compare, err := verify.New(verify.Options{Kind: verify.Normalized})
	if err != nil {
		t.Fatal(err)
	}
	rows, err := jsonl.Open(jsonl.Options{Train: file("train.jsonl"), Eval: file("eval.jsonl"), Fields: jsonl.DefaultFields(), Main: compare})
	if err != nil {
		t.Fatal(err)
	}
	corpus, err := search.NewCorpus(t.Context(), search.CorpusOptions{Corpus: file("corpus.jsonl"), Results: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer corpus.Close()
	b := &Toolbox{}
	b.Add(corpus, tool.Limits{})
	b.Add(tool.Calculator(), tool.Limits{})
	d := &PartsDemonstrations{task: rows, tools: b}
	const questions = 2000
	for c := range d.Demonstrations(planner, questions) {
		lines := script(t, c)
		q, err := rows.Lookup(c.Query)
		if err != nil {
			t.Fatal(err)
		}
		if got := lines[len(lines)-1]; got != q.Answer {
			t.Errorf("%s: the planner answers %q, want %q: %q", q.ID, got, q.Answer, lines)
		}
		asked := 0
		for _, s := range c.Segments {
			if s.Call == nil {
				continue
			}
			if i, ok := verify.Asked(q.Parts, s.Call.Subtask, 1); !ok || q.Parts[i].Question != q.Parts[asked].Question {
				t.Errorf("%s: %q asks for part %d, %v; want %d", q.ID, s.Call.Subtask, i, ok, asked)
			}
			asked++
		}
		if asked != len(q.Parts) {
			t.Errorf("%s: the planner asks for %d parts, want %d", q.ID, asked, len(q.Parts))
		}
	}
	const searched = 100
	conversations, right := 0, 0
	for c := range d.Demonstrations(researcher, searched) {
		lines := script(t, c)
		conversations++
		if lines[len(lines)-1] != notFound {
			right++
		}
	}
	if right*100 < conversations*95 {
		t.Errorf("%d of %d researchers find their part", right, conversations)
	}
}
