package jsonl

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
)

func write(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, train, eval string, kind verify.Kind) *Task {
	t.Helper()
	v, err := verify.New(verify.Options{Kind: kind})
	if err != nil {
		t.Fatal(err)
	}
	rows, err := Open(Options{Train: write(t, train), Eval: write(t, eval), Fields: DefaultFields(), Seed: 4, Main: v})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestOptions: an answer may be an option's number, as in MMLU, or its label, as in ARC. If the verifier cannot read an answer, the file is
// refused.
func TestOptions(t *testing.T) {
	choice, err := verify.New(verify.Options{Kind: verify.Choice})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ row, answer, want string }{
		{`"choices": ["4", "2", "1", "6"], "answer": 1`, "B", ""},
		{`"choices": ["4", "2", "1", "6"], "answer": [1, 3]`, "B D", ""},
		{`"choices": ["4", "2", "1", "6"], "answer": "1"`, "1", ""},
		{`"choices": ["4", "2", "1", "6"], "answer": 6`, "6", ""},
		{`"choices": {"text": ["a", "b", "c"], "label": ["1", "2", "3"]}, "answer": "3"`, "C", ""},
		{`"choices": {"text": ["a", "b", "c"], "label": ["A", "B", "C"]}, "answer": "B"`, "B", ""},
		{`"choices": {"text": ["a", "b", "c", "d"], "label": ["1", "2", "3", "4"]}, "answer": 3`, "C", ""},
		{`"choices": {"A": "a", "B": "b", "C": null}, "answer": "B"`, "B", ""}, // as in MedQA
		{`"choices": {"A": "a", "C": "c"}, "answer": "C"`, "B", ""},
		{`"choices": {"A": "a", "B": "b"}, "answer": "b"`, "b", ""},
		{`"choices": [{"label": "1", "text": "a"}, {"label": "2", "text": "b"}], "answer": "2"`, "B", ""},
		{`"choices": [{"key": "A", "value": "a"}, {"key": "B", "value": "b"}], "answer": "B"`, "B", ""},
		{`"choices": [{"label": "A", "text": "a"}, {"label": "A", "text": "b"}], "answer": "A"`, "", `two options have the label "A", which is the answer`},
		{`"choices": {"text": ["a", "b"], "label": ["", ""]}, "answer": "b"`, "b", ""},
		{`"choices": {"Text": ["a", "b"], "Label": ["1", "2"]}, "answer": "2"`, "B", ""},
		{`"choices": [{"label": "1"}], "answer": "1"`, "", `option 1 has no "label" (or "key") or no "text"`},
		{`"choices": {"A": "a", "B": 2}, "answer": "A"`, "", "must be a list of texts"},
		{`"choices": ["O", "A", "B", "AB"], "answer": 0`, "O", ""},  // "A" is another option's text
		{`"choices": ["a", "b", "c", "d"], "answer": "3"`, "D", ""}, // as in HellaSwag
		{`"choices": ["a", "b"], "answer": "2"`, "", `the reference "2" is not one of 2 choices`},
		{`"choices": ["1.0", "2.0"], "answer": "1"`, "", `the reference "1" is not one of 2 choices`},
		{`"choices": ["a", "b"], "answer": 2`, "", "row-000001 of the queries for train: 2 is not the number of one of 2 choices, counted from 0"},
		{`"choices": {"text": ["a", "b"], "label": ["1"]}, "answer": "1"`, "", "2 texts, but 1 labels"},
		{`"choices": ["a", "b"], "answer": "e"`, "", `row-000001 of the queries for train: verifier: choice: the reference "e" is not one of 2 choices`},
	} {
		path := write(t, `{"question": "q?", `+c.row+"}\n")
		opened, err := Open(Options{Train: path, Eval: path, Fields: DefaultFields(), Main: choice, AnswersNameOptions: true})
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %s", c.row, err, c.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.row, err)
			continue
		}
		if q := opened.Eval(0); !strings.Contains(q.Text, "\n(B) ") || q.Answer != strings.Fields(c.answer)[0] || q.Accepted != nil && strings.Join(q.Accepted, " ") != c.answer {
			t.Errorf("%s: %q, %q", c.row, q.Answer, q.Accepted)
		}
	}
}

func TestReadRows(t *testing.T) {
	rows, err := ReadRows(write(t, `{"question":"a?","answer":"b"}

{"id":"x-1","question":"c?","answer":4.50,"choices":["p","q"],"other":{}}
{"id":7,"question":"d?","answer":true}`), DefaultFields())
	want := []Row{
		{ID: "row-000001", Question: "a?", Answer: "b", Columns: []byte(`{"question":"a?","answer":"b"}`)},
		{ID: "x-1", Question: "c?", Answer: "4.50", numbers: true, Choices: []string{"p", "q"}, Columns: []byte(`{"id":"x-1","question":"c?","answer":4.50,"choices":["p","q"],"other":{}}`)},
		{ID: "7", Question: "d?", Answer: "true", Columns: []byte(`{"id":7,"question":"d?","answer":true}`)},
	}
	if err != nil || !reflect.DeepEqual(rows, want) {
		t.Errorf("%+v, %v; want %+v", rows, err, want)
	}
	renamed, err := ReadRows(write(t, `{"id":"same","q":"a?","a":"b"}`+"\n"+`{"id":"same","q":"a?","a":"b"}`), Fields{Question: "q", Answer: "a"})
	if err != nil || renamed[1].ID != "row-000002" || renamed[1].Answer != "b" {
		t.Errorf("%+v, %v", renamed, err)
	}
}

// TestIDs: an id with a slash or a space, as in HumanEval and MATH-500, is kept reversibly. Without an id a row has its number.
func TestIDs(t *testing.T) {
	for id, want := range map[string]string{
		`"test/precalculus/807.json"`: "test%2Fprecalculus%2F807.json", `"Q 12"`: "Q%2012", `"a#b%é😀"`: "a%23b%25é%F0%9F%98%80", `"x-1.a_b:c"`: "x-1.a_b:c",
		"null": "row-000001",
	} {
		rows, err := ReadRows(write(t, `{"id":`+id+`,"question":"a","answer":"b"}`), DefaultFields())
		if err != nil || rows[0].ID != want {
			t.Errorf("%s: %+v, %v", id, rows, err)
			continue
		}
		if back, err := url.PathUnescape(want); id != "null" && (err != nil || `"`+back+`"` != id) {
			t.Errorf("%s becomes %s, %v", want, back, err)
		}
	}
}

func TestReadRowsNamesFileAndLine(t *testing.T) {
	good := `{"question":"a","answer":"b"}` + "\n"
	for name, bad := range map[string]string{
		"not JSON": "{", "a list": "[]", "null": "null", "no question": `{"answer":"b"}`, "no answer": `{"question":"a"}`, "empty question": `{"question":"","answer":"b"}`,
		"nested answer": `{"question":"a","answer":{}}`, "null answer": `{"question":"a","answer":null}`, "bad choices": `{"question":"a","answer":"b","choices":[1]}`,
		"long id": `{"id":"` + strings.Repeat("a/", 33) + `","question":"a","answer":"b"}`, "empty id": `{"id":"","question":"a","answer":"b"}`,
		"no answers": `{"question":"a","answer":[]}`, "a nested answer": `{"question":"a","answer":["b",["c"]]}`, "long": `{"question":"` + strings.Repeat("x", maxLine) + `"}`, "not UTF-8": "{\"question\":\"\xff\",\"answer\":\"b\"}",
		"id of the first": `{"id":"row-000001","question":"a","answer":"b"}`, "two objects": `{"question":"a","answer":"b"} {}`,
		"choices": `{"question":"a","answer":"b","choices":["` + strings.Repeat(`x","`, 27) + `"]}`,
	} {
		path := write(t, good+bad)
		if _, err := ReadRows(path, DefaultFields()); err == nil || !strings.Contains(err.Error(), path+":2: ") {
			t.Errorf("%s: %v does not name %s:2", name, err, path)
		}
	}
	for name, path := range map[string]string{"empty": write(t, "\n"), "absent": "/nonexistent/rows.jsonl"} {
		if _, err := ReadRows(path, DefaultFields()); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTask(t *testing.T) {
	var train strings.Builder
	for i := range 20 {
		fmt.Fprintf(&train, `{"question":"%d?","answer":"%d"}`+"\n", i, i)
	}
	rows := open(t, train.String(), `{"question":"which?","answer":"B","choices":["p","q"]}`, verify.Normalized)
	visits := map[string]int{}
	for i := range int64(60) {
		q := rows.Train(i)
		visits[q.ID]++
		again, err := rows.Lookup(q.ID)
		if err != nil || !reflect.DeepEqual(again, q) {
			t.Errorf("%s is rebuilt as %+v, %v", q.ID, again, err)
		}
		if want := i >= 20; strings.Contains(q.ID, "#epoch=") != want {
			t.Errorf("query %d is %s", i, q.ID)
		}
		if got, err := rows.VerifyMain(t.Context(), q, task.Attempt{Answer: " " + strings.TrimSuffix(q.Text, "?") + "."}); err != nil || got != 1 {
			t.Errorf("%s: %v, %v", q.ID, got, err)
		}
		if got, err := rows.VerifySub(t.Context(), q, task.Attempt{Subtask: "sub", Answer: "none"}); err != nil || got != 0 {
			t.Errorf("%s: %v, %v", q.ID, got, err)
		}
	}
	if len(visits) != 60 || visits["train-row-000001#epoch=3"] != 1 {
		t.Errorf("%d ids of 60 visits", len(visits))
	}
	if q := rows.Eval(0); rows.EvalSize() != 1 || q.ID != "eval-row-000001" || q.Text != "which?\n(A) p\n(B) q" {
		t.Errorf("%+v", q)
	}
	for _, id := range []string{"row-000001", "train-row-000099", "eval-row-000001#epoch=1", ""} {
		if _, err := rows.Lookup(id); err == nil {
			t.Errorf("%q is found", id)
		}
	}
}

func TestChoicesReachTheVerifier(t *testing.T) {
	row := `{"question":"which?","answer":"q","choices":["p","q"]}`
	rows := open(t, row, row, verify.Choice)
	for answer, want := range map[string]float64{"The answer is (B).": 1, "q": 1, "A": 0} {
		if got, err := rows.VerifyMain(t.Context(), rows.Eval(0), task.Attempt{Answer: answer}); err != nil || got != want {
			t.Errorf("%q: %v, %v", answer, got, err)
		}
	}
}

func FuzzReadRows(f *testing.F) {
	for _, s := range []string{`{"question":"a","answer":"b"}`, `{"id":1e9,"question":1,"answer":-0,"choices":null}`, "\xef\xbb\xbf{}", "{\"question\":\"\\ud800\",\"answer\":\"\"}",
		`{"question":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"a"}]}],"answer":[{"text":"b"}]}`, `{"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]}`, `{"prompt":"a","reward_model":{"ground_truth":{"target":[1]}}}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, content string) {
		rows, err := ReadRows(write(t, content), DefaultFields())
		if (err == nil) != (len(rows) > 0) {
			t.Errorf("%d rows, %v", len(rows), err)
		}
		for _, s := range []Options{{Layout: "verl"}, {Layout: "sharegpt"}, {Fields: Fields{Question: "question", Answer: "answer.0.text", Level: "question.0.content.0"}}} {
			if rows, err := s.read(write(t, content), s.Layout); err == nil && (rows[0].Question == "" || rows[0].Columns == nil) {
				t.Errorf("%+v", rows[0])
			}
		}
	})
}
