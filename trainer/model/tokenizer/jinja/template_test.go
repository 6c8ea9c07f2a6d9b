package jinja

import (
	"bufio"
	"os"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// unsupported are templates that Jinja2 renders and this package refuses: an error, never another text.
var unsupported = map[string]bool{
	`{{ not not t }}`:   true,
	`{{ i > 5 == t }}`:  true, // chains of comparisons
	`{{ 1 < i < 10 }}`:  true,
	`{{ "%s" % s }}`:    true, // formatting
	`{{ s.format(1) }}`: true,
}

// TestAgainstJinja2 compares with what Jinja2 3.1.6 made of the same templates in transformers' settings.
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
			t.Errorf("%q renders %q, it has to fail (%v)", source, got, message)
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
