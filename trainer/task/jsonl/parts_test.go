package jsonl

import (
	"reflect"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
)

func TestReadParts(t *testing.T) {
	row := `{"question":"a and b?","answer":"3","parts":[{"question":"a?","answer":1,"doc":"t:1"},{"question":"b?","answer":["2","two"]}]}`
	rows, err := ReadRows(write(t, row), DefaultFields())
	want := []task.SubQuestion{{Question: "a?", Answer: "1"}, {Question: "b?", Answer: "2", Accepted: []string{"2", "two"}}}
	if err != nil || !reflect.DeepEqual(rows[0].Parts, want) {
		t.Fatalf("%+v, %v", rows, err)
	}
	task := open(t, row, row, verify.Exact)
	if q := task.Train(0); !reflect.DeepEqual(q.Parts, want) {
		t.Errorf("the query's parts are %+v", q.Parts)
	}
	v, err := verify.New(verify.Options{Kind: verify.Exact})
	if err != nil {
		t.Fatal(err)
	}
	bare := write(t, `{"question":"a?","answer":"1","parts":[]}`)
	if _, err := Open(Options{Train: bare, Eval: bare, Fields: DefaultFields(), Main: v, NeedParts: true}); err == nil || !strings.Contains(err.Error(), "training row row-000001 has no parts") {
		t.Errorf("a row without parts: %v", err)
	}
	if _, err := Open(Options{Train: write(t, row), Eval: bare, Fields: DefaultFields(), Main: v, NeedParts: true}); err != nil {
		t.Errorf("a held-out row without parts: %v", err)
	}
	for parts, want := range map[string]string{
		`{"question":"a?"}`: "must be a list",
		`[{"answer":"1"}]`:  "part 1 has no question",
		`[{"question":"a?","answer":"1"}, {"question":"b?"}]`: "part 2 has no answer",
		`[{"question":"a?","answer":{}}]`:                     "part 1: answer: must be a text or a number",
		`[{"question":"a?","answer":[]}]`:                     "part 1: answer: a list of 0 answers",
		`[` + strings.Repeat(`{"question":"a?","answer":"1"},`, maxParts) + `{"question":"a?","answer":"1"}]`: "257 parts",
	} {
		path := write(t, `{"question":"a?","answer":"1","parts":`+parts+`}`)
		if _, err := ReadRows(path, DefaultFields()); err == nil || !strings.Contains(err.Error(), path+`:1: field "parts": `+want) {
			t.Errorf("%.80s: %v, want %q", parts, err, want)
		}
	}
}
