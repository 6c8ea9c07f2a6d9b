package web

import (
	"strings"
	"testing"
)

// TestRobots checks cases of RFC 9309, sections 2.2 and 5.
func TestRobots(t *testing.T) {
	const simple = `User-Agent: *
Disallow: *.gif$
Disallow: /example/
Allow: /publications/

User-Agent: foobot
Disallow:/
Allow:/example/page.html
Allow:/example/allowed.gif

User-Agent: barbot
User-Agent: bazbot
Disallow: /example/page.html

User-Agent: quxbot

EOF`
	const longest = "User-agent: foobot\r\nAllow: /example/page/\r\nDisallow: /example/page/disallowed.gif\rDisallow: /tie\nAllow: /tie"
	for _, c := range []struct {
		text, product, path string
		want                bool
	}{
		{simple, "other", "/example/x", false}, {simple, "other", "/publications/x", true}, {simple, "other", "/a.gif", false},
		{simple, "other", "/a.gif?x", true}, {simple, "other", "/", true},
		{simple, "FooBot", "/", false}, {simple, "foobot", "/example/page.html", true}, {simple, "foobot", "/example/allowed.gif", true},
		{simple, "barbot", "/example/page.html", false}, {simple, "bazbot", "/example/page.html", false}, {simple, "bazbot", "/example/", true},
		{simple, "quxbot", "/example/", true},
		{longest, "foobot", "/example/page/x", true}, {longest, "foobot", "/example/page/disallowed.gif", false}, {longest, "foobot", "/tie", true},
		{"User-agent: a\nDisallow: /x\nUser-agent: b\nDisallow: /y\nUser-agent: a\nDisallow: /z", "a", "/z", false},
		{"User-agent: a\nDisallow: /x\nUser-agent: b\nDisallow: /y\nUser-agent: a\nDisallow: /z", "a", "/y", true},
		{"User-agent: a/2.0\nDisallow: /", "a", "/x", false},
		{"\xef\xbb\xbfuser-agent : * # all\ndisallow : /x # this", "a", "/x/y", false},
		{"user-agent: *\nDisallow:", "a", "/x", true}, {"", "a", "/", true}, {"Disallow: /", "a", "/", true},
		{"user-agent: *\ndisallow: /a*c*e$", "a", "/abcde", false}, {"user-agent: *\ndisallow: /a*c*e$", "a", "/abcdef", true},
		{"user-agent: *\ndisallow: /a$", "a", "/a", false}, {"user-agent: *\ndisallow: /a$", "a", "/ab", true},
		{"user-agent: *\ndisallow: /a*bc$", "a", "/abc", false}, {"user-agent: *\ndisallow: /ab*b$", "a", "/ab", true},
		{"user-agent: *\ndisallow: /foo/bar/ツ", "a", "/foo/bar/%E3%83%84", false}, {"user-agent: *\ndisallow: /foo/bar/%e3%83%84", "a", "/foo/bar/%E3%83%84", false},
		{"user-agent: *\ndisallow: /foo/bar/%62%61%7A", "a", "/foo/bar/baz", false}, {"user-agent: *\ndisallow: /a%2Fb", "a", "/a/b", true},
		{"user-agent: *\ndisallow: /wiki/Special:", "a", "/wiki/Special%3ARandom", false}, {"user-agent: *\ndisallow: /a%2A", "a", "/a*", false}, {"user-agent: *\ndisallow: /a%2A", "a", "/ab", true},
		{"user-agent: *\ndisallow: /a%24", "a", "/a$b", false}, {"user-agent: *\ndisallow: /a$b", "a", "/a$b", false}, {"user-agent: *\ndisallow: /x?u=https://a.b", "a", "/x?u=https%3A//a.b", false},
	} {
		if got := parseRobots([]byte(c.text), c.product).allows(c.path); got != c.want {
			t.Errorf("%.40q: may %s read %s: got %v, want %v", c.text, c.product, c.path, got, c.want)
		}
	}
	many := "user-agent: *\ndisallow: /" + strings.Repeat("a*", 100_000) + "$"
	if !parseRobots([]byte(many), "a").allows("/" + strings.Repeat("a", 2000)) {
		t.Error("a pattern with many stars matches a path that is too short")
	}
}

// FuzzRobots: a file without rules allows everything, and a last rule that forbids everything is applied. Normalising a path twice changes
// nothing.
func FuzzRobots(f *testing.F) {
	f.Add("User-agent: *\nDisallow: /a*b$\nAllow: /%41", "/a%62?x")
	f.Fuzz(func(t *testing.T, text, path string) {
		parseRobots([]byte(text), "reader").allows(path)
		if once := normalPath(path, separators); normalPath(once, separators) != once {
			t.Errorf("path %q is normalised to %q, and that to %q", path, once, normalPath(once, separators))
		}
		if !strings.Contains(strings.ToLower(text), "allow") && !parseRobots([]byte(text), "reader").allows(path) {
			t.Errorf("%q forbids %q", text, path)
		}
		all := "user-agent: reader\nallow: /\n" + strings.Map(func(r rune) rune {
			if r == '\n' || r == '\r' || r == ':' {
				return -1
			}
			return r
		}, text) + "\nuser-agent: reader\ndisallow: *"
		if parseRobots([]byte(all), "reader").allows("x") {
			t.Errorf("%q allows a path although its last rule forbids all", all)
		}
	})
}
