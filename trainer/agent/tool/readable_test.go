package tool

import (
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestReadable(t *testing.T) {
	base, err := url.Parse("https://example.org/a/b")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		page, want string
		links      bool
	}{
		"blocks":       {page: "<h1>Ada</h1>\n<p>one\n two<p>three<br>four<div>five <i>s</i>ix</div>", want: "# Ada\n\none two\n\nthree\nfour\n\nfive six"},
		"lists":        {page: "<ul><li>a<li>b <ul><li>c</ul></ul><dl><dt>t<dd>d</dl>", want: "- a\n- b\n\n- c\n\nt\nd"},
		"a table":      {page: "<p>x<table><caption>Rivers</caption><tr><th>name <th>km<tr><td><p>Danube</p><br> <td>2850</table>y", want: "x\n\nRivers\nname | km\nDanube | 2850\n\ny"},
		"code":         {page: "<pre>if x:\n    <b>y</b> = 1\n</pre>z", want: "if x:\n    y = 1\n\n\nz"},
		"what is main": {page: "<div>menu</div><main><header><h2>T</h2></header><p>text</main><div>more</div>", want: "## T\n\ntext"},
		"one article":  {page: "<div>menu</div><article>text</article>", want: "text"},
		"two articles": {page: "<article>a</article><article>b</article>", want: "a\n\nb"},
		"not for readers": {page: "<title>T</title><nav>n</nav><script>s</script><style>s</style><p hidden>h</p><p aria-hidden=true>i</p><template>t</template>x<footer>f</footer>",
			want: "T\n\nx"},
		"links": {page: `see <a href="../c#d">this <b>page</b></a>, <a href="#e">here</a>, <a href="javascript:x()">no</a> <a href="mailto:a@b">m</a>`,
			want: "see [this page](https://example.org/c), here, no m", links: true},
		"a base": {page: `<head><base href="/docs/"></head><a href="p">p</a> <a href="/a/b">here</a>`, want: "[p](https://example.org/docs/p) here", links: true},
		"a long base": {page: `<head><base href="https://other.org/` + long(maxAddress) + `"></head><a href="p">p</a> <a href="` + long(maxAddress+1) + `">q</a>`,
			want: "[p](https://example.org/a/p) q", links: true},
		"no links":  {page: `see <a href="../c">this</a>.`, want: "see this."},
		"entities":  {page: "a&nbsp;b &lt;c&gt; &amp;", want: "a b <c> &"},
		"no markup": {page: "just text", want: "just text"},
		"nothing":   {page: "", want: ""},
	} {
		got, err := readable(strings.NewReader(c.page), base, c.links)
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}

func FuzzReadable(f *testing.F) {
	f.Add("<title>T</title><table><tr><td>a<td>b</table><pre> x\n y</pre><a href='?q'>l</a><ul><li>x", true)
	f.Add("<main><svg><p><math><table><select><template>", false)
	base, err := url.Parse("https://example.org/a")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, page string, links bool) {
		text, err := readable(strings.NewReader(page), base, links)
		if err != nil {
			return
		}
		if utf8.ValidString(page) && !utf8.ValidString(text) {
			t.Errorf("%q", text)
		}
		if text != strings.TrimSpace(text) || !strings.Contains(strings.ToLower(page), "<pre") && (strings.Contains(text, "\n\n\n") || strings.Contains(text, "  ")) {
			t.Errorf("%q has space for nothing", text)
		}
		if plain := strings.Join(strings.Fields(page), " "); !strings.ContainsAny(page, "<&\x00") && text != plain {
			t.Errorf("%q becomes %q", page, text)
		}
	})
}
