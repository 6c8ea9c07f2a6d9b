package jsonl

import (
	"encoding/csv"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestSeparatedValues(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"rows.csv", "id,question,answer\n7,\"a, or\nb?\",\"say \"\"b\"\"\"\n", ""},
		{"rows.csv", "id,question,answer\n7,a\n", "wrong number of fields: 2, but the first line has 3"},
		{"rows.tsv", "question\tanswer\nis \"a\" b?\tyes\n", ""},
		{"rows.tsv", "question\tanswer\na\tb\tc\n", "wrong number of fields"},
		{"rows.csv", "question,answer\ncaf\xe9?,b\n", "not UTF-8: save the file as UTF-8"},
		{"rows.tsv", "question\tanswer\na?\t\x93b\x94\n", "not UTF-8"},
		{"rows.tsv", "\xff\xfeq\x00\t\x00a\x00", "UTF-16"},
		{"rows.tsv", "\"a\r\nnote\"\tid\tquestion\tanswer\r\nn\t7\tq?\ta\r\n", ""},
		{"rows.csv", "question,answer\rq1,a1\r", "end with carriage returns alone"},
		{"rows.tsv", "", "EOF"},
		{"rows.csv", "", "EOF"},
		{"rows.CSV", "id,question,answer\r\n7,\"a, or\r\nb?\",say \"b\"\r\n", ""},
		{"rows.csv", "question,answer\n\"Heroes\" by Bowie,1\n", "begins with a quote"},
		{"rows.csv", "question,answer\n\"a,1\n", "begins with a quote"},
		{"rows.csv", "question,answer,answer\nq,1,2\n", `two columns have the name "answer"`},
		{"rows.tsv", "question\tquestion\ta\n", `two columns have the name "question"`},
	} {
		path := filepath.Join(t.TempDir(), c.name)
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		rows, err := ReadRows(path, DefaultFields())
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path+":1")) || c.want == "" && (err != nil || len(rows) != 1) {
			t.Errorf("%q: %+v, %v", c.text, rows, err)
		}
		if c.want == "" && c.name != "rows.tsv" && (rows[0].ID != "7" || rows[0].Question != "a, or\nb?" || rows[0].Answer != `say "b"`) {
			t.Errorf("%+v", rows[0])
		}
	}
}

// TestSeparatedValuesAreCSV: a file that encoding/csv reads has the same values.
func TestSeparatedValuesAreCSV(t *testing.T) {
	for _, text := range []string{"a,b\n", "a,\n,b\n", "a,b", "\"a\",\"b\"\r\n\r\n c , d \r\n", "\"\",\"a \"\"b\"\"\"\nc,\"\n\"\n\"\r\nx\",\"\"", "é,\"ü\"\n"} {
		want, err := csv.NewReader(strings.NewReader(text)).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		var got [][]string
		for r := newSeparatedReader(iotest.OneByteReader(strings.NewReader(text)), ',', 100); ; {
			values, err := r.read()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			got = append(got, values)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
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

// TestListsInCSV: a value of .csv may be the JSON text of a list, and an empty value is no list.
func TestListsInCSV(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows.csv")
	text := "question,answer,choices,parts\nq?,B,\"[\"\"a\"\", \"\"b\"\"]\",\nr?,b,,\"[{\"\"question\"\": \"\"s?\"\", \"\"answer\"\": \"\"c\"\"}]\"\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	rows, err := ReadRows(path, DefaultFields())
	if err != nil || len(rows) != 2 || !slices.Equal(rows[0].Choices, []string{"a", "b"}) || rows[1].Choices != nil || len(rows[1].Parts) != 1 || rows[1].Parts[0].Answer != "c" {
		t.Errorf("%+v, %v", rows, err)
	}
}
