package jsonl

import (
	"reflect"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// A name with dots leads into objects and lists, unless a column has that very name.
func TestNestedNames(t *testing.T) {
	row := `{"extra":{"n":7,"hop":"two","level":{"of":3},"a.b":"own"},"prompt":{"text":"a?"},"answers":[{"text":"b"},{"text":["c","d"]}],"options":{"all":["p","q"]},"steps":[[{"question":"e?","answer":"f"}]],"x.y":"dotted","x":{"y":"nested"}}`
	fields := Fields{ID: "extra.n", Question: "prompt.text", Answer: "answers.1.text", Choices: "options.all", Parts: "steps.0", Kind: "extra.hop", Level: "extra.level.of"}
	rows, err := ReadRows(write(t, row), fields)
	want := []Row{{ID: "7", Question: "a?", Answer: "c", Accepted: []string{"c", "d"}, Choices: []string{"p", "q"}, Parts: []task.SubQuestion{{Question: "e?", Answer: "f"}}, Kind: "two", Level: "3", Columns: []byte(row)}}
	if err != nil || !reflect.DeepEqual(rows, want) {
		t.Errorf("%+v, %v; want %+v", rows, err, want)
	}
	for name, want := range map[string]string{"x.y": "dotted", "extra.a.b": "own", "answers.0.text": "b"} {
		rows, err := ReadRows(write(t, row), Fields{ID: "extra.absent", Question: "prompt.text", Answer: name, Choices: "none.at.all", Parts: "answers.9", Kind: "answers.first", Level: "x.z"})
		if err != nil || rows[0].Answer != want || rows[0].ID != "row-000001" || rows[0].Kind+rows[0].Level != "" || rows[0].Parts != nil {
			t.Errorf("%s: %+v, %v, want %q", name, rows, err, want)
		}
	}
}

func TestNestedNamesRefuse(t *testing.T) {
	for _, c := range []struct{ row, name, want string }{
		{`{"a":{"y":1}}`, "a.b", `:1: no field "a.b": "a" has "y"; set task.fields.answer to the right name`},
		{`{"a":{}}`, "a.b", `"a" has none`},
		{`{"a":{"b":{"c":1}}}`, "a.b.d", `"a.b" has "c"`},
		{`{"b":1}`, "a.b", `no field "a.b": the row has "b", "question"`},
		{`{"a":null}`, "a.b", `"a" is null`},
		{`{"a":[{"c":1}]}`, "a.1.c", `"a" has 1 elements, counted from 0`},
		{`{"a":[{"c":1}]}`, "a.-1.c", `"a" has 1 elements, counted from 0`},
		{`{"a":[{"c":1}]}`, "a.c", `"a" has 1 elements, counted from 0`},
		{`{"a":[{"c":1}]}`, "a.0.d", `"a.0" has "c"`},
		{`{"a":"{\"b\":1}"}`, "a.b", `"a" is neither an object nor a list`},
		{`{"a":{"b":{"c":1}}}`, "a.b", `field "a.b": must be a text or a number`},
	} {
		path := write(t, `{"question":"a?",`+c.row[1:])
		if _, err := ReadRows(path, Fields{Question: "question", Answer: c.name}); err == nil || !strings.Contains(err.Error(), path+":1: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s in %s: %v, want %q", c.name, c.row, err, c.want)
		}
	}
	if _, err := ReadRows(write(t, `{"question":"a?","answer":"b","kind":"c"}`), Fields{Question: "question", Answer: "answer", Level: "kind.d"}); err == nil || !strings.Contains(err.Error(), `"kind" is neither`) {
		t.Errorf("a path into a text, in a field that a row may lack: %v", err)
	}
}
