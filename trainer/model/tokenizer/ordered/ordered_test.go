package ordered

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestPython has JSON texts and the results of Python's json.dumps(ensure_ascii=False) and repr for them.
func TestPython(t *testing.T) {
	for _, c := range []struct{ in, dumps, repr string }{
		{`null`, `null`, `None`},
		{`[true,false]`, `[true, false]`, `[True, False]`},
		{`{"b":1,"a":{"z":[],"y":{}},"b":2}`, `{"b": 2, "a": {"z": [], "y": {}}}`, `{'b': 2, 'a': {'z': [], 'y': {}}}`},
		{`-0`, `0`, `0`},
		{`-0.0`, `-0.0`, `-0.0`},
		{`1.50`, `1.5`, `1.5`},
		{`1E5`, `100000.0`, `100000.0`},
		{`1e-5`, `1e-05`, `1e-05`},
		{`0.0001`, `0.0001`, `0.0001`},
		{`1e16`, `1e+16`, `1e+16`},
		{`9999999999999998.0`, `9999999999999998.0`, `9999999999999998.0`},
		{`123456789012345678901234567890`, `123456789012345678901234567890`, `123456789012345678901234567890`},
		{`-9223372036854775809`, `-9223372036854775809`, `-9223372036854775809`},
		{`1e400`, `Infinity`, `inf`},
		{`5e-324`, `5e-324`, `5e-324`},
		{`"<&>'\"\\\/"`, `"<&>'\"\\/"`, `'<&>\'"\\/'`},
		{`"it's"`, `"it's"`, `"it's"`},
		{`"\u0000\b\f\n\r\t\u001f\u007f"`, "\"\\u0000\\b\\f\\n\\r\\t\\u001f\u007f\"", `'\x00\x08\x0c\n\r\t\x1f\x7f'`},
		{`"é\u2028\u00a0\ud83d\ude00\u200b"`, "\"é\u2028\u00a0😀\u200b\"", `'é\u2028\xa0😀\u200b'`},
		{`"\ud800"`, "\"\ufffd\"", "'\ufffd'"},
	} {
		v, err := Parse([]byte(c.in))
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		if got, err := Dumps(v, Format{}); got != c.dumps {
			t.Errorf("Dumps(%s): got %s, %v, want %s", c.in, got, err, c.dumps)
		}
		if got, err := Repr(v); got != c.repr {
			t.Errorf("Repr(%s): got %s, %v, want %s", c.in, got, err, c.repr)
		}
	}
}

func TestTuples(t *testing.T) {
	for want, v := range map[string]any{"()": Tuple{}, "(1,)": Tuple{int64(1)}, "(1, ('a',))": Tuple{int64(1), Tuple{"a"}}} {
		if got, err := Repr(v); got != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
}

func TestFormat(t *testing.T) {
	indent := "  "
	v := NewObject("b", []any{int64(1), "é😀"}, "a", &Object{})
	for want, f := range map[string]Format{
		"{\n  \"b\": [\n    1,\n    \"é😀\"\n  ],\n  \"a\": {}\n}": {Indent: &indent},
		`{"a": {}, "b": [1, "\u00e9\ud83d\ude00"]}`:               {SortKeys: true, ASCII: true},
		`{"b"=[1;"é😀"];"a"={}}`:                                   {ItemSeparator: ";", KeySeparator: "="},
	} {
		if got, err := Dumps(v, f); got != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"":                        "ends in the middle",
		"[1":                      "ends in the middle",
		"1 2":                     "text follows",
		"[1,]":                    "invalid character",
		"{\"a\" 1}":               "invalid character",
		"NaN":                     "invalid character",
		"01":                      "text follows",
		strings.Repeat("[", 600):  "nested deeper",
		strings.Repeat("1", 5000): "5000 digits",
	} {
		if v, err := Parse([]byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20s: got %v, %v, want an error with %q", in, v, err, want)
		}
	}
}

func TestObjectAsJSON(t *testing.T) {
	var o Object
	if err := json.Unmarshal([]byte(`{"z":1,"a":{"c":2,"b":3}}`), &o); err != nil {
		t.Fatal(err)
	}
	if got, err := json.Marshal(&o); string(got) != `{"z":1,"a":{"c":2,"b":3}}` {
		t.Errorf("got %s, %v", got, err)
	}
	if err := json.Unmarshal([]byte(`[1]`), &o); err == nil {
		t.Error("a list was decoded as an object")
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e-7,null,"é\n"],"b":{"c":true}}`, `[[],{},"",-0,1e400]`, `"\ud800x"`, `123456789012345678901`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := Parse(data)
		if err != nil {
			return
		}
		first, err := Dumps(v, Format{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Repr(v); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(first, "Infinity") {
			return
		}
		again, err := Parse([]byte(first))
		if err != nil {
			t.Fatalf("%s: %v", first, err)
		}
		if second, _ := Dumps(again, Format{}); second != first {
			t.Errorf("got %s, want %s", second, first)
		}
	})
}
