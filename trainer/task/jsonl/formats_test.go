package jsonl

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"

	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
)

// parquetRow has the columns of a published data set: a list of answers, and columns that only a reward uses.
type parquetRow struct {
	Question string   `parquet:"question"`
	Answer   []string `parquet:"answer,list"`
	Choices  []string `parquet:"choices,list"`
	Meta     struct {
		Level int64 `parquet:"level"`
	} `parquet:"meta"`
	Weight *float64 `parquet:"weight,optional"`
}

func parquetFile(t testing.TB, rows []parquetRow) []byte {
	t.Helper()
	return compressed(t, rows, &parquet.Snappy)
}

func compressed(t testing.TB, rows []parquetRow, codec compress.Codec) []byte {
	t.Helper()
	var b bytes.Buffer
	w := parquet.NewGenericWriter[parquetRow](&b, parquet.Compression(codec), parquet.MaxRowsPerRowGroup(100))
	if _, err := w.Write(rows); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A missing number, which some writers of Parquet leave as NaN, is null in JSON, which has no NaN.
func TestParquetNaN(t *testing.T) {
	row := parquetRow{Question: "a", Answer: []string{"b"}, Weight: new(math.NaN())}
	got, err := ReadRows(write(t, string(parquetFile(t, []parquetRow{row}))), DefaultFields())
	if err != nil || len(got) != 1 || !sameJSON(got[0].Columns, []byte(`{"question":"a","answer":["b"],"choices":[],"meta":{"level":0},"weight":null}`)) {
		t.Errorf("%+v, %v", got, err)
	}
}

// Rows from Python's own writer, with lists, structs, dictionaries and missing values, in row groups, pages of version
// 2 and zstd: testdata/write.py wrote the file.
func TestParquetOfPyarrow(t *testing.T) {
	got, err := ReadRows(filepath.Join("testdata", "pyarrow.parquet"), DefaultFields())
	if err != nil {
		t.Fatal(err)
	}
	want := []Row{
		{ID: "sum-1", Question: "2 + 2?", Answer: "4", Accepted: []string{"4", "four"}, Choices: []string{"3", "4"}, Level: "1", Parts: []task.SubQuestion{
			{Question: "What is 2?", Answer: "2", Accepted: []string{"2", "two"}}, {Question: "What is another 2?", Answer: "2", Accepted: []string{"2"}}}},
		{ID: "capital-1", Question: "Côte d'Ivoire <capital>?", Answer: "Yamoussoukro", Accepted: []string{"Yamoussoukro"}, Parts: []task.SubQuestion{}},
		{ID: "sum-2", Question: "3 + 4?", Answer: "7", Accepted: []string{"7"}, Choices: []string{}, Level: "3", Parts: []task.SubQuestion{}},
	}
	columns := []string{
		`{"id":"sum-1","question":"2 + 2?","answer":["4","four"],"choices":["3","4"],"subject":"sums","level":1,"weight":0.5,"checked":true,"price":"12.5","parts":[{"question":"What is 2?","answer":["2","two"]},{"question":"What is another 2?","answer":["2"]}],"meta":{"source":"book","tags":["a","b"]}}`,
		`{"id":"capital-1","question":"Côte d'Ivoire <capital>?","answer":["Yamoussoukro"],"choices":null,"subject":"places","level":null,"weight":null,"checked":false,"price":null,"parts":null,"meta":null}`,
		`{"id":"sum-2","question":"3 + 4?","answer":["7"],"choices":[],"subject":"sums","level":3,"weight":null,"checked":null,"price":"-0.25","parts":[],"meta":{"source":null,"tags":[]}}`,
	}
	if len(got) != len(want) {
		t.Fatalf("%d rows", len(got))
	}
	for i := range got {
		if !sameJSON(got[i].Columns, []byte(columns[i])) {
			t.Errorf("row %d has the columns %s\nwant %s", i+1, got[i].Columns, columns[i])
		}
		got[i].Columns = nil
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("row %d: %+v, want %+v", i+1, got[i], want[i])
		}
	}
}

// The same rows as Parquet, as an array and as lines are the same task.
func TestFormats(t *testing.T) {
	const n = 250 // more than a batch, more than a row group
	rows := make([]parquetRow, n)
	var lines strings.Builder
	array := make([]string, n)
	for i := range rows {
		rows[i] = parquetRow{Question: fmt.Sprintf("question <%d>?", i), Answer: []string{fmt.Sprint(i), "many"}, Choices: []string{"p", "q"}}
		rows[i].Meta.Level = int64(i % 3)
		array[i] = fmt.Sprintf(`{"answer":["%d","many"],"choices":["p","q"],"meta":{"level":%d},"question":"question <%d>?","weight":null}`, i, i%3, i)
		lines.WriteString(array[i] + "\n")
	}
	want, err := ReadRows(write(t, lines.String()), DefaultFields())
	if err != nil || len(want) != n || want[7].Answer != "7" || len(want[7].Accepted) != 2 {
		t.Fatalf("%d rows, %v", len(want), err)
	}
	for name, content := range map[string]string{
		"Parquet": string(parquetFile(t, rows)), "an array": "\n [" + strings.Join(array, ",\n") + "]\n",
	} {
		got, err := ReadRows(write(t, content), DefaultFields())
		if err != nil || len(got) != n {
			t.Errorf("%s: %d rows, %v", name, len(got), err)
			continue
		}
		for i := range got {
			if !sameJSON(got[i].Columns, want[i].Columns) {
				t.Errorf("%s: row %d has the columns %s", name, i, got[i].Columns)
			}
			got[i].Columns = want[i].Columns
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v …", name, got[:2])
		}
	}
}

// TestNaN: NaN, which Python writes for a missing number, is null, as in Parquet. In a text it stays as it is, and infinity is refused.
func TestNaN(t *testing.T) {
	const row = `{"question":"NaN? \"NaN\\\\","answer":"1","score":NaN,"more":[NaN,{"a":NaN}]}`
	const want = `{"question":"NaN? \"NaN\\\\","answer":"1","score":null,"more":[null,{"a":null}]}`
	contents := []string{row, "[" + row + "]"}
	for n := range 100 { // NaN at the end of a buffer
		contents = append(contents, strings.Repeat(" ", 4000+n)+row, "["+strings.Repeat(" ", 4000+n)+row+"]")
	}
	for _, content := range contents {
		got, err := ReadRows(write(t, content), DefaultFields())
		if err != nil || len(got) != 1 || string(got[0].Columns) != want {
			t.Errorf("%.20q: %+v, %v", content, got, err)
		}
	}
	for _, row := range []string{`{"question":"q","answer":Infinity}`, `{"question":"q","answer":"a","score":-Infinity}`, `[{"question":"q","answer":[-Infinity]}]`} {
		if _, err := ReadRows(write(t, row), DefaultFields()); err == nil || !strings.Contains(err.Error(), "JSON has no Infinity: write null") {
			t.Errorf("%s: %v", row, err)
		}
	}
}

func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

func TestFormatsHostile(t *testing.T) {
	good := `{"question":"a","answer":"b"}`
	whole := string(parquetFile(t, []parquetRow{{Question: "a", Answer: []string{"b"}}}))
	for name, c := range map[string]struct{ content, want string }{
		"an array without an end":    {"[" + good + ",", ":2: "},
		"a bracket":                  {"[", "does not end"},
		"an empty array":             {"[]", "no rows"},
		"two arrays":                 {"[" + good + "] []", "follows the array"},
		"a number in an array":       {"[" + good + ", 7]", ":2: not a JSON object"},
		"deep nesting":               {strings.Repeat("[", 1<<20), ":1: "},
		"a row that does not end":    {"[" + good + `,{"question":"` + strings.Repeat("x", 8*maxLine), "a row of more than"},
		"a long row":                 {"[" + good + `,{"question":"` + strings.Repeat("x", maxLine) + `"}]`, ":2: a row of more than"},
		"the beginning of Parquet":   {"PAR1", ":0: "},
		"Parquet without its end":    {whole[:len(whole)-9], ":0: "},
		"Parquet with a long footer": {whole[:len(whole)-8] + "\xf0\xff\xff\xffPAR1", "its footer claims 4294967280 bytes"},
		"Parquet without its start":  {"PAR1" + whole[len(whole)/2:], ":"},
		"Parquet with LZ4":           {string(compressed(t, []parquetRow{{Question: "a", Answer: []string{"b"}}}, &parquet.Lz4Raw)), "is compressed with LZ4, which is not supported"},
		"rows of several lines":      {"{\n" + good[1:], ":1: not a JSON object: unexpected end of JSON input: write each row on a single line"},
		"UTF-16":                     {"\xff\xfe{\x00", ":1: the text is UTF-16: save it as UTF-8"},
		"gzip":                       {"\x1f\x8b\x08\x00", ":1: the file is compressed with gzip: decompress it first"},
		"zstd":                       {"\x28\xb5\x2f\xfd\x00", "compressed with zstd"},
		"Parquet of an empty row":    {string(parquetFile(t, []parquetRow{{Question: "a", Answer: []string{"b"}}, {}})), `:2: field "question": empty`},
	} {
		path := write(t, c.content)
		if _, err := ReadRows(path, DefaultFields()); err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), path, "FILE"), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestErrorNamesFieldsOfRow: the error for an absent field names the fields of the row, and the key that sets the name.
func TestErrorNamesFieldsOfRow(t *testing.T) {
	_, err := ReadRows(write(t, `{"problem":"a","solution":"b","level":1}`), DefaultFields())
	const want = `:1: no field "question": the row has "level", "problem", "solution"; set task.fields.question to the right name`
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	if _, err := ReadRows(write(t, `{"problem":"a","level":1}`), Fields{Question: "problem", Answer: "answer"}); err == nil || !strings.Contains(err.Error(), "task.fields.answer") {
		t.Errorf("%v", err)
	}
}

// recorder keeps what a verifier is asked.
type recorder struct{ verify.Case }

func (r *recorder) Score(_ context.Context, c verify.Case) (float64, error) {
	r.Case = c
	return 1, nil
}

func TestColumnsReachTheVerifier(t *testing.T) {
	row := `{"question":"which?","answer":["q","r"],"choices":["p","q"],"level":3}`
	asked := &recorder{}
	rows, err := Open(Options{Train: write(t, row), Eval: write(t, row), Fields: DefaultFields(), Main: asked})
	if err != nil {
		t.Fatal(err)
	}
	conversation := []task.Message{{Role: "assistant", Text: "r"}}
	if _, err := rows.VerifySub(t.Context(), rows.Eval(0), task.Attempt{Subtask: "s", Answer: "r", Conversation: conversation}); err != nil {
		t.Fatal(err)
	}
	c := asked.Case
	if string(c.Query.Columns) != row || !reflect.DeepEqual(c.Accepted(), []string{"q", "r"}) || c.Question() != "s" || len(c.Attempt.Conversation) != 1 {
		t.Errorf("%+v", c)
	}
	lookedUp, err := rows.Lookup("eval-row-000001")
	if err != nil || string(lookedUp.Columns) != row {
		t.Errorf("a query that is looked up has the columns %s, %v", lookedUp.Columns, err)
	}
}

func FuzzParquet(f *testing.F) {
	whole := parquetFile(f, []parquetRow{{Question: "a", Answer: []string{"b"}}, {Question: "c", Answer: []string{"d"}, Choices: []string{"x"}}})
	f.Add(whole)
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(path, append([]byte("PAR1"), content[min(len(content), 4):]...), 0o600); err != nil {
			t.Fatal(err)
		}
		rows, err := ReadRows(path, DefaultFields())
		if (err == nil) != (len(rows) > 0) {
			t.Errorf("%d rows, %v", len(rows), err)
		}
	})
}
