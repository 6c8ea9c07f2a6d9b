package jsonl

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
)

// TestLayouts reads a file in the form in which each benchmark publishes its own.
func TestLayouts(t *testing.T) {
	exact, err := verify.New(verify.Options{Kind: verify.Exact})
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
		rows, err := Open(Options{Train: path, Eval: path, Layout: layout, Main: exact})
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
	exact, err := verify.New(verify.Options{Kind: verify.Exact})
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
		{"squad", `{"question":"?","answer":"b"}`, "must be rows or one of 2wiki, browsecomp, fanoutqa, frames, gaia, hotpotqa, musique, sharegpt, verl, webwalkerqa"},
	} {
		path := write(t, c.row)
		if _, err := Open(Options{Train: path, Eval: path, Layout: c.layout, Main: exact}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.row, err, c.want)
		}
	}
}
