package jinja

import (
	"bufio"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// unsupported has templates that Jinja2 renders and this package refuses. The result must be an error, never another text.
var unsupported = map[string]bool{
	`{{ {(1, 2): 3} }}`: true, // a tuple as a key
	`{% macro m(a) %}{{ a }}{{ varargs|length }}{% endmacro %}{{ m(1, 2, 3) }}`: true, // arguments beyond the parameters
	`{{ [{'a': 2, 'b': 1}, {'a': 1, 'b': 2}]|sort(attribute='a,b') }}`:          true, // several attributes
}

// TestAgainstJinja2 compares with the output of Jinja2 3.1.6 for the same templates with transformers' settings.
func TestAgainstJinja2(t *testing.T) {
	file, err := os.Open("testdata/cases.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	vars := map[string]any{}
	n := 0
	for lines.Scan() {
		v, err := ordered.Parse(lines.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		row := v.(*ordered.Object)
		if v, ok := row.Get("variables"); ok {
			o := v.(*ordered.Object)
			for _, k := range o.Keys() {
				vars[k], _ = o.Get(k)
			}
			continue
		}
		n++
		source, _ := row.Get("template")
		want, ok := row.Get("text")
		got, err := render(source.(string), vars)
		switch {
		case !ok && err == nil:
			message, _ := row.Get("error")
			t.Errorf("%q renders %q, want an error (%v)", source, got, message)
		case ok && err != nil && !unsupported[source.(string)]:
			t.Errorf("%q: %v", source, err)
		case ok && err == nil && got != want:
			t.Errorf("%q:\n got %q\nwant %q", source, got, want)
		}
	}
	if err := lines.Err(); err != nil || n == 0 {
		t.Fatalf("%d cases, %v", n, err)
	}
}

func render(source string, vars map[string]any) (string, error) {
	tmpl, err := Parse(source)
	if err != nil {
		return "", err
	}
	return tmpl.Render(vars, time.Time{})
}

// TestSyntaxErrors checks that malformed and unsupported templates are refused, and that the error names the line.
func TestSyntaxErrors(t *testing.T) {
	for source, want := range map[string]string{
		"a\n{{ x":                        "line 2: a tag does not end",
		"\n{# x":                         "line 2: a comment does not end",
		"{% raw %}\n":                    "line 1: a raw block does not end",
		"{{ x\n'y }}":                    "line 2: a string does not end",
		"{{ '\\x4' }}":                   `line 1: the escape \x is cut short`,
		"{{ x ? y }}":                    "line 1: unexpected '?' in a tag",
		"{{ (1\n] }}":                    `line 2: "]" without its opening bracket`,
		"{{ }}":                          `line 1: want an expression, have "}}"`,
		"{{ x y }}":                      `line 1: want "}}", have "y"`,
		"{{ 1 + not x }}":                `line 1: want an expression, have "not"`,
		"{{ x[] }}":                      `line 1: want an expression, have "]"`,
		"{{ 010 }}":                      `line 1: want "}}", have "10"`,
		"{{ x. }}":                       `line 1: want a name or an integer, have "}}"`,
		"{{ x|1 }}":                      `line 1: want a name, have "1"`,
		"{{ x is }}":                     `line 1: want a name, have "}}"`,
		"{{ f(a=1, 2) }}":                "line 1: an argument without a name behind one with a name",
		"{{ f(a=1, a=2) }}":              "line 1: the argument a is given twice",
		"{{ f(*a, b) }}":                 "line 1: an argument behind * or **",
		"{{ f(**a, b=1) }}":              "line 1: an argument behind * or **",
		"\n{% if x %}\n{% for y in z %}": "line 3: for without else or endfor",
		"{% if x %}{% else %}":           "line 1: if without endif",
		"{% if x %}\n{% endfor %}":       "line 2: endfor without the tag that it belongs to",
		"\n{% include 'x' %}":            "line 2: the tag include is not supported",
		"{% filter upper %}":             "line 1: filter without endfilter",
		"{% for x in y recursive %}":     "line 1: for: recursive is not supported",
		"{% for x.y in z %}{% endfor %}": `line 1: want "in", have "."`,
		"{% set none = 1 %}":             `line 1: want a name, have "none"`,
		"{% set a, b %}{% endset %}":     "line 1: set: several names without a value",
		"{% macro m(a=1, b) %}":          "line 1: macro: a parameter without a default behind one with a default",
		"{% set x = 1":                   "line 1: a tag does not end",
		"{{ " + strings.Repeat("9", 5000) + " }}": "line 1: a number of more than 4300 digits",
	} {
		if _, err := Parse(source); err == nil || err.Error() != want {
			t.Errorf("%.60q: got %v, want %s", source, err, want)
		}
	}
}
