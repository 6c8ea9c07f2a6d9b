package jsonl

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
)

// TestLayouts reads a file in the form in which each benchmark publishes its own.
func TestLayouts(t *testing.T) {
	exact, err := verify.New(verify.Settings{Kind: verify.Exact})
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]Row{
		"hotpotqa.json": {ID: "5a8b57f2", Question: "Were the Tarrow ferry and the Lomm light built in the same year?", Answer: "yes", Kind: "comparison", Level: "hard"},
		"2wiki.json":    {ID: "8813f87c", Question: "Who is the mother of the builder of the Lomm light?", Answer: "Ada Finn", Kind: "compositional"},
		"musique.jsonl": {ID: "3hop1__482757_12019_88", Question: "Where was the mother of the builder of the Lomm light born?", Answer: "Tarrow", Accepted: []string{"Tarrow", "Tarrow Island"}, Kind: "3hop1",
			Parts: []task.SubQuestion{{Question: "Lomm light >> builder", Answer: "Otto Finn"}, {Question: "Otto Finn >> mother", Answer: "Ada Finn"}, {Question: "Where was Ada Finn , mother of Otto Finn , born?", Answer: "Tarrow"}}},
		"frames.tsv": {ID: "0", Question: `How many years after the "Lomm" light was the Tarrow ferry built?`, Answer: "12", Kind: "Numerical reasoning | Tabular reasoning"},
		"fanoutqa.json": {ID: "0009c27edac43b35", Question: "How many lamps do the lights of Tarrow have?", Answer: "Lomm: 2, Skerry: 1",
			Parts: []task.SubQuestion{{Question: "On which coast is Tarrow?", Answer: "north"}, {Question: "Which lights has Tarrow?", Answer: "Lomm, Skerry"}, {Question: "How many lamps has Lomm?", Answer: "2"}}},
		"webwalkerqa.jsonl": {ID: "row-000001", Question: "When does the Lomm ferry office open?", Answer: "At 6:40.", Kind: "multi_source", Level: "medium"},
		"gaia.jsonl":        {ID: "c61d22de-5f6c-4958-a7f6-5e9707bd3466", Question: "How many lamps are listed?\n(The file lamps.xlsx belongs to this question. It cannot be opened here.)", Answer: "17", Level: "2"},
		"browsecomp.csv":    {ID: "row-000001", Question: "Which ferry, built between 1900 and 1910, ended at an island whose light has two lamps?", Answer: "Tarrow ferry", Kind: "History"},
		"verl.jsonl":        {ID: "row-000001", Question: "Answer with a name.\n\nWhich river passes Tarrow?", Answer: "Lomm", Accepted: []string{"Lomm", "the Lomm"}, Kind: "made/rivers"},
		"sharegpt.json":     {ID: "rivers_1", Question: "Answer with a name.\n\nWhich river passes Tarrow?", Answer: "Lomm"},
	} {
		path := filepath.Join("testdata", "layouts", file)
		layout := strings.TrimSuffix(file, filepath.Ext(file))
		rows, err := Open(Settings{Train: path, Eval: path, Layout: layout, Main: exact})
		if err != nil {
			t.Error(err)
			continue
		}
		got := rows.eval[0]
		if len(got.Columns) == 0 {
			t.Errorf("%s: the row's own columns are lost", layout)
		}
		got.Columns = nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n%+v\nwant\n%+v", layout, got, want)
		}
		q := rows.Eval(0)
		if score, err := rows.VerifyMain(t.Context(), q, task.Attempt{Answer: want.Answer}); err != nil || score != 1 || q.Kind != want.Kind || q.Level != want.Level {
			t.Errorf("%s: %+v, %v, %v", layout, q, score, err)
		}
	}
	if names := Layouts(); len(names) != 10 {
		t.Errorf("%v are tested with 10 files", names)
	}
}

func TestLayoutsRefuse(t *testing.T) {
	exact, err := verify.New(verify.Settings{Kind: verify.Exact})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ layout, row, want string }{
		{"hotpotqa", `{"_id":"a","query":"?","answer":"b"}`, `:1: no field "question", which rows of this layout have: the row has "_id", "answer", "query"`},
		{"musique", `{"id":"2hop__1","question":"?","answer":"b","answerable":false}`, "answerable is false"},
		{"musique", `{"id":"2hop__1","question":"?","answer":"b","question_decomposition":{}}`, "not of this layout"},
		{"musique", `{"id":"2hop__1","question":"?","answer":"b","question_decomposition":[{}` + strings.Repeat(",{}", maxParts) + `]}`, "question_decomposition: 257 parts; at most 256 are read"},
		{"musique", `{"id":"2hop__1","question":"?","answer":"b","question_decomposition":[{"question":"x","answer":"` + strings.Repeat("y", maxLine/100) + `"}` +
			strings.Repeat(`,{"question":"#1","answer":"z"}`, 101) + `]}`, errTooLong.Error()},
		{"fanoutqa", `{"id":"a","question":"?","answer":"b","decomposition":[{"question":"c?"}]}`, `decomposition: "c?": no answer`},
		{"fanoutqa", `{"id":"a","question":"?","answer":[null],"decomposition":[]}`, "must be a text or a number"},
		{"gaia", `{"task_id":"a","Question":"?","Level":1,"Final answer":"?"}`, "are not published"},
		{"browsecomp", `{"problem":"not base64","answer":"b","canary":"c"}`, "the question cannot be decrypted with the row's canary"},
		{"squad", `{"question":"?","answer":"b"}`, "must be one of 2wiki, browsecomp, fanoutqa, frames, gaia, hotpotqa, musique, sharegpt, verl, webwalkerqa"},
	} {
		path := write(t, c.row)
		if _, err := Open(Settings{Train: path, Eval: path, Layout: c.layout, Main: exact}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.row, err, c.want)
		}
	}
}

// Step 10 of a decomposition is not step 1 with a nought.
func TestMuSiQueReferences(t *testing.T) {
	steps := strings.Repeat(`{"question":"x","answer":"first"},`, 9) + `{"question":"y","answer":"tenth"},{"question":"#10 after #1","answer":"z"}`
	row, err := readRows(write(t, `{"id":"a","question":"?","answer":"z","question_decomposition":[`+steps+`]}`), DefaultFields(), musique)
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

// Nested answers are not answers of FanOutQA, at any depth.
func TestNestedAnswers(t *testing.T) {
	for _, answer := range []string{`[["a"]]`, `{"k":["a"]}`, strings.Repeat("[", 9000) + strings.Repeat("]", 9000)} {
		if rows, err := readRows(write(t, `{"id":"a","question":"?","answer":`+answer+`,"decomposition":[]}`), DefaultFields(), fanOutQA); err == nil {
			t.Errorf("%.20s is read as %q", answer, rows[0].Answer)
		}
	}
}

// True and false are yes and no, in lists and objects, too.
func TestAnswersOfYesAndNo(t *testing.T) {
	for answer, want := range map[string]string{`true`: "yes", `false`: "no", `[true, "a", 2]`: "yes, a, 2", `{"b": false, "a": true}`: "a: yes, b: no", `"true"`: "true"} {
		rows, err := readRows(write(t, `{"id":"a","question":"?","answer":`+answer+`,"decomposition":[{"question":"b?","answer":`+answer+`}]}`), DefaultFields(), fanOutQA)
		if err != nil || rows[0].Answer != want || rows[0].Parts[0].Answer != want {
			t.Errorf("%s: %+v, %v, want %q", answer, rows, err, want)
		}
	}
}

func TestSeparatedValues(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"rows.csv", "id,question,answer\n7,\"a, or\nb?\",\"say \"\"b\"\"\"\n", ""},
		{"rows.csv", "id,question,answer\n7,a\n", "wrong number of fields"},
		{"rows.tsv", "question\tanswer\nis \"a\" b?\tyes\n", ""},
		{"rows.tsv", "question\tanswer\na\tb\tc\n", "wrong number of fields"},
		{"rows.tsv", "", "EOF"},
		{"rows.csv", "", "EOF"},
	} {
		path := filepath.Join(t.TempDir(), c.name)
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		rows, err := ReadRows(path, DefaultFields())
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path+":1")) || c.want == "" && (err != nil || len(rows) != 1) {
			t.Errorf("%q: %+v, %v", c.text, rows, err)
		}
		if c.want == "" && c.name == "rows.csv" && (rows[0].ID != "7" || rows[0].Question != "a, or\nb?" || rows[0].Answer != `say "b"`) {
			t.Errorf("%+v", rows[0])
		}
	}
}

// CSV with tabs from a program, text with tabs from a person, and both with the marks of Windows.
func TestTabs(t *testing.T) {
	for text, want := range map[string][]string{
		"question\tanswer\nWho?\t\"Heroes\" by Bowie\nq2\ta2\nq3\ta3\n":                                              {"Who?", "\"Heroes\" by Bowie", "q2", "a2", "q3", "a3"},
		"\ufeffquestion\tanswer\r\n\"a\tb\nc\"\t\"say \"\"b\"\"\"\r\n\r\nq2\ta2":                                     {"a\tb\nc", `say "b"`, "q2", "a2"},
		"\"question\"\t\"answer\"\nq1\t\"\"\"b\"\"\"\nq2\t\"open\nq3\t\"quoted\"":                                    {"q1", `"b"`, "q2", `"open`, "q3", "quoted"},
		"question\tanswer\n" + strings.Repeat("x", 100_000) + "\t\"" + strings.Repeat("y\n", 100_000) + "\"\nq\ta\n": {strings.Repeat("x", 100_000), strings.Repeat("y\n", 100_000), "q", "a"},
	} {
		path := filepath.Join(t.TempDir(), "rows.tsv")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		rows, err := ReadRows(path, DefaultFields())
		var got []string
		for _, r := range rows {
			got = append(got, r.Question, r.Answer)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%.60q: %.200q, %v", text, got, err)
		}
	}
}
