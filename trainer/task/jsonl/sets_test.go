package jsonl

import (
	"reflect"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/tasktest"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
)

// Held-out queries of several files stay separate, even if their rows have equal ids.
func TestSets(t *testing.T) {
	exact, err := verify.New(verify.Options{Kind: verify.Exact})
	if err != nil {
		t.Fatal(err)
	}
	rows := func(ids ...string) string {
		var text strings.Builder
		for _, id := range ids {
			text.WriteString(`{"id":"` + id + `","question":"` + id + `?","answer":"` + id + `"}` + "\n")
		}
		return write(t, text.String())
	}
	s := Options{Train: rows("a", "b"), Eval: rows("a", "b", "c"), Fields: DefaultFields(), Main: exact, Sets: []Set{
		{Name: "hard", Path: rows("a", "d")}, {Name: "other", Path: write(t, `{"_id":"x","question":"x?","answer":"x","level":"easy"}`), Layout: "hotpotqa"}}}
	opened, err := Open(s)
	if err != nil {
		t.Fatal(err)
	}
	tasktest.Check(t, opened)
	var got []string
	for _, q := range task.HeldOut(opened, 2) {
		got = append(got, q.ID+" "+q.Set+" "+q.Text)
	}
	if want := []string{"eval-a  a?", "eval-b  b?", "eval.hard-a hard a?", "eval.hard-d hard d?", "eval.other-x other x?"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q", got)
	}
	if opened.EvalSize() != 6 || !reflect.DeepEqual(opened.EvalSets(), []int{3, 2, 1}) || opened.Eval(5).Level != "easy" {
		t.Errorf("%d, %v", opened.EvalSize(), opened.EvalSets())
	}
	s.Sets = []Set{{Name: "a", Path: rows("b-c")}, {Name: "a-b", Path: rows("c")}}
	if _, err := Open(s); err == nil || !strings.Contains(err.Error(), "evaluation set a-b: jsonl: two sets have a query eval.a-b-c") {
		t.Error(err)
	}
}
