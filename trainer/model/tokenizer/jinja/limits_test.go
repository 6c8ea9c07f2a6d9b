package jinja

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// TestHostileTemplates renders templates that would run, grow or nest without end.
func TestHostileTemplates(t *testing.T) {
	loops := func(body string) string {
		return "{% set ns = namespace(s='x', l=[0]) %}" + strings.Repeat("{% for i in range(100000) %}", 3) + body +
			strings.Repeat("{% endfor %}", 3)
	}
	for name, c := range map[string]struct{ source, want string }{
		"nested loops":    {loops("{{ i }}"), "steps|MiB"},
		"string doubling": {loops("{% set ns.s = ns.s ~ ns.s %}"), "MiB"},
		"list doubling":   {loops("{% set ns.l = ns.l + ns.l %}"), "MiB"},
		"shared lists":    {"{% set ns = namespace(l=[0]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}", "longer than"},
		"shared as json":  {"{% set ns = namespace(l=[0]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson }}", "longer than"},
		"shared compared": {"{% set ns = namespace(l=[0], m=[0]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{% endfor %}{{ ns.l == ns.m }}", "MiB|steps"},
		"deep list":       {"{% set ns = namespace(l=[0]) %}{% for i in range(3000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}", "nested deeper"},
		"length":          {"{% set s = 'x' * 100000000 %}{% for i in range(1000) %}{% for j in range(1000) %}{% if s|length %}{% endif %}{% endfor %}{% endfor %}", "MiB|steps"},
		"upper":           {"{% set s = 'X' * 10000000 %}{% for i in range(1000) %}{% for j in range(1000) %}{% if s is upper %}{% endif %}{% endfor %}{% endfor %}", "MiB|steps"},
		"order":           {"{% set s = 'x' * 50000000 %}{% set t = 'x' * 50000000 %}{% for i in range(1000) %}{% for j in range(1000) %}{% if s < t %}{% endif %}{% endfor %}{% endfor %}", "MiB|steps"},
		"output":          {"{% set s = 'x' * 1000000 %}{% for i in range(1000) %}{{ s }}{% endfor %}", "writes more than"},
		"repeat":          {"{{ 'xx' * 4611686018427387904 }}", "MiB"},
		"empty repeat":    {"{{ [] * 4611686018427387904 }}", "MiB"},
		"replace":         {"{% set s = 'x' * 1000000 %}{{ s|replace('x', s) }}", "MiB"},
		"join":            {"{% set s = 'x' * 100000 %}{{ s|join(s) }}", "MiB"},
		"integers":        {"{% set ns = namespace(n=7) %}{% for i in range(100) %}{% set ns.n = ns.n * ns.n %}{% endfor %}", "bits"},
		"power":           {"{{ 9 ** 99999999 }}", "bits"},
		"range":           {"{% for i in range(1000000000000) %}{% endfor %}", "range too big"},
		"recursion":       {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "deeper than"},
		"indent":          {"{{ 'a\nb'|indent(1000000000) }}", "width"},
		"json indent":     {"{{ [[]]|tojson(indent=1000000000) }}", "indent"},
		"brackets":        {"{{ " + strings.Repeat("(", 1000) + "1" + strings.Repeat(")", 1000) + " }}", "nested deeper"},
		"blocks":          {strings.Repeat("{% if true %}", 50000), "nested deeper"},
		"set blocks":      {strings.Repeat("{% set x %}", 50000), "nested deeper"},
		"inline ifs":      {"{{ " + strings.Repeat("1 if true else ", 500) + "2 }}", "nested deeper"},
		"long tag":        {"{{ 1" + strings.Repeat("+1", 100000) + " }}", "tokens"},
		"named argument":  {"{{ 1 is eq(x=1) }}", "without a name"},
		"name in index":   {"{{ [1].index(x=1) }}", "without a name"},
		"large":           {strings.Repeat("x", maxSource+1), "larger than"},
	} {
		_, err := render(c.source, nil)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		found := false
		for _, want := range strings.Split(c.want, "|") {
			found = found || strings.Contains(err.Error(), want)
		}
		if !found {
			t.Errorf("%s: got %.200v, want an error with %q", name, err, c.want)
		}
	}
}

func TestRaiseException(t *testing.T) {
	_, err := render("a\n{{ raise_exception('no ' ~ x) }}", map[string]any{"x": int64(3)})
	if !errors.Is(err, ErrRaised) || err.Error() != "line 2: raised by the template: no 3" {
		t.Errorf("got %v", err)
	}
}

// TestInvalidText: chat_template.jinja may have bytes that are not UTF-8.
func TestInvalidText(t *testing.T) {
	got, err := render("{{ '\xff'.capitalize() }}{{ '\xff\xffA'.capitalize() }}", nil)
	if want := "\ufffd\ufffd\xffa"; got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestErrorNamesInnermostLine(t *testing.T) {
	_, err := render("{% if true %}\n{% for x in [1] %}\n\n{{ x.y.z }}\n{% endfor %}{% endif %}", nil)
	if err == nil || !strings.HasPrefix(err.Error(), "line 4: attribute 'y' of 'int object' is undefined") {
		t.Errorf("got %v", err)
	}
}

func FuzzTemplate(f *testing.F) {
	for _, s := range []string{"{{ messages[0].content|trim }}", "{% for m in messages %}{{ loop.index ~ m }}{% endfor %}",
		"{% set ns = namespace(a=1) %}{% set ns.a = 'x' if ns.a else d %}{{ ns.a }}", "{% macro m(a, b=2) %}{{ a + b }}{% endmacro %}{{ m(1) }}",
		"{% raw %}{{{% endraw %}{#- x -#}", "{{ {'a': [1, 2.5e3, 'x\\n'][::-1]}|tojson(indent=2) }}", "{%- if a in b is c and not d -%}{%- elif e -%}{%- else -%}{%- endif -%}",
		"{{", "{%", "{{ ( }}", "{% if %}", "{{ a. }}", "{{ a[ }}", "{{ a is }}", "{{ 'a' if }}", "{% set x %}", "{% for x in y if z %}"} {
		f.Add(s)
	}
	vars := map[string]any{"messages": []any{ordered.NewObject("role", "user", "content", " hi ")}, "d": ordered.NewObject("k", int64(1))}
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := Parse(source)
		if err != nil {
			return
		}
		first, err := tmpl.Render(vars, time.Time{})
		again, errAgain := tmpl.Render(vars, time.Time{})
		if (err == nil) != (errAgain == nil) || first != again && !strings.Contains(source, "strftime_now") {
			t.Errorf("two renderings differ: %q, %v; %q, %v", first, err, again, errAgain)
		}
	})
}
