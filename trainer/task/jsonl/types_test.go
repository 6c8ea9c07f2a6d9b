package jsonl

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// TestParquetTypes compares Parquet's types with a table of JSON values: testdata/write_types.py wrote the values with
// pyarrow.
func TestParquetTypes(t *testing.T) {
	want := map[string]string{
		"int8": "-8", "uint8": "200", "int64": "-9223372036854775808", "uint32": "4294967295", "uint64": "18446744073709551615",
		"float32": "0.1", "float64": "0.1", "big": "1e+300", "f32big": "16777216", "nan": "null", "bool": "true", "null": "null",
		"string": `"é"`, "large_string": `"x"`, "dictionary": `"x"`, "utf8_binary": `"text"`,
		"dec9": `"12.34"`, "dec18": `"-1234567890.12"`, "dec38": `"-12345678901234567890.1234"`,
		"date32": `"2024-02-29"`, "date64": `"1969-12-31"`, "ts_ms": `"2024-02-29T12:30:15.123"`, "ts_us": `"2024-02-29T12:30:15.123456"`, "ts_ns": `"2024-02-29T12:30:15.123456789"`,
		"ts_utc": `"2024-02-29T12:30:15Z"`, "ts_paris": `"2024-02-29T12:30:15.123456Z"`, "time_ms": `"12:30:15.123"`, "time_us": `"12:30:15.123456"`, "duration": "1500000",
		"list": "[1,2]", "list_null": "[1,null]", "list_empty": "[]", "fsl": "[1,2]", "list_list": "[[1],[]]", "list_dec": `["1.5"]`, "list_ts": `["2024-02-29T00:00:00"]`,
		"map": `{"b":1,"a":2}`, "map_int": `{"7":"x"}`, "struct": `{"x":1,"d":"2.5","t":"2024-01-01"}`, "list_struct": `[{"role":"user","content":"q"}]`,
		"question": `"q"`, "answer": `"a"`,
	}
	rows, err := ReadRows(filepath.Join("testdata", "types.parquet"), DefaultFields())
	if err != nil || len(rows) != 1 {
		t.Fatal(len(rows), err)
	}
	var columns map[string]json.RawMessage
	if err := json.Unmarshal(rows[0].Columns, &columns); err != nil || len(columns) != len(want) {
		t.Errorf("%d columns, %v", len(columns), err)
	}
	for name, value := range want {
		if string(columns[name]) != value {
			t.Errorf("%s is %s, want %s", name, columns[name], value)
		}
	}
	old, err := ReadRows(filepath.Join("testdata", "int96.parquet"), DefaultFields())
	if err != nil || !strings.Contains(string(old[0].Columns), `"int96":"2024-02-29T12:30:15.123456"`) {
		t.Errorf("%+v, %v", old, err)
	}
	for name, want := range map[string]string{"infinite": `column "infinite"`, "bytes": `column "bytes"`, "fixed": `column "fixed"`, "half": `column "half"`,
		"twice": `two columns have the name "answer"`} {
		if _, err := ReadRows(filepath.Join("testdata", "refused-"+name+".parquet"), DefaultFields()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The first and the third of the file's four groups have no rows.
	groups, err := ReadRows(filepath.Join("testdata", "empty-groups.parquet"), DefaultFields())
	if err != nil || len(groups) != 2 || groups[1].ID != "row-000002" || groups[1].Answer != "A2" {
		t.Errorf("%+v, %v", groups, err)
	}
}

// TestJSONTypes keeps the values of JSON as they are written.
func TestJSONTypes(t *testing.T) {
	for value, want := range map[string]string{"18446744073709551616": "18446744073709551616", "0.10": "0.10", "1e400": "1e400", "true": "true", "-0": "-0", `"\u00e9"`: "é", "[9007199254740993]": "9007199254740993"} {
		rows, err := ReadRows(write(t, `{"question":"q","answer":`+value+`,"nested":{"a":[null,{"b":`+value+`}]}}`), DefaultFields())
		if err != nil || rows[0].Answer != want || !strings.Contains(string(rows[0].Columns), `{"b":`+value+`}`) {
			t.Errorf("%s: %+v, %v", value, rows, err)
		}
	}
	for _, value := range []string{"null", "{}", "NaN", "Infinity", "[]"} {
		if rows, err := ReadRows(write(t, `{"question":"q","answer":`+value+`}`), DefaultFields()); err == nil {
			t.Errorf("%s is read as %+v", value, rows)
		}
	}
}

// TestThinkingInAnswers leaves the thinking of a reasoning model out of reference answers, wherever they are.
func TestThinkingInAnswers(t *testing.T) {
	const thought = `<think>\nIs it 3? \"</think>\" ends it. No.\n</think>\n\n4`
	for row, want := range map[string]string{
		`{"question":"q","answer":"` + thought + `"}`:                                         "4",
		`{"question":"q","answer":["` + thought + `","four"]}`:                                "4",
		`{"question":"q","answer":"It is 3, or not.</think>4"}`:                               "4",
		`{"question":"q","answer":"the tags <think> and </think>"}`:                           "the tags <think> and </think>",
		`{"question":"q","answer":" 4 "}`:                                                     " 4 ",
		`{"question":"q","answer":"<think>It is 4."}`:                                         "",
		`{"question":"q","answer":"4","parts":[{"question":"p","answer":"` + thought + `"}]}`: "4",
	} {
		rows, err := ReadRows(write(t, row), DefaultFields())
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), "only thinking") {
				t.Errorf("%s: %+v, %v", row, rows, err)
			}
			continue
		}
		if err != nil || rows[0].Answer != want || len(rows[0].Parts) > 0 && rows[0].Parts[0].Answer != want {
			t.Errorf("%s: %+v, %v", row, rows, err)
		}
	}
	layout := layouts["sharegpt"]
	for _, turns := range []string{
		`{"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"` + thought + `"}]}`,
		`{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"` + thought + `"}]}`,
	} {
		out, err := layout(rowOf(t, turns))
		if err != nil {
			t.Fatal(err)
		}
		if row, err := parseRow(out, 0, DefaultFields()); err != nil || row.Answer != "4" {
			t.Errorf("%s: %+v, %v", turns, row, err)
		}
	}
}

func rowOf(t *testing.T, text string) (o object) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	return o
}
