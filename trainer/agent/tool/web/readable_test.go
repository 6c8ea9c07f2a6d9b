package web

import (
	"net/url"
	"runtime"
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
		"hidden main":  {page: "<main hidden>a</main><main>b</main><p>c", want: "b"},
		"empty main":   {page: "<title>T</title><main><div></div></main><p>text", want: "T\n\ntext"},
		"a quotation":  {page: "<blockquote><p>No.</p><footer>Ada</footer></blockquote><footer>f</footer>", want: "No.\n\nAda"},
		"one article":  {page: "<div>menu</div><article>text</article>", want: "text"},
		"two articles": {page: "<article>a</article><article>b</article>", want: "a\n\nb"},
		"not for readers": {page: "<title>T</title><nav>n</nav><script>s</script><style>s</style><p hidden>h</p><p aria-hidden=true>i</p><template>t</template>x<footer>f</footer>",
			want: "T\n\nx"},
		"links": {page: `see <a href="../c#d">this <b>page</b></a>, <a href="#e">here</a>, <a href="javascript:x()">no</a> <a href="mailto:a@b">m</a>`,
			want: "see [this page](https://example.org/c), here, no m", links: true},
		"a base": {page: `<head><base href="/docs/"></head><a href="p">p</a> <a href="/a/b">here</a>`, want: "[p](https://example.org/docs/p) here", links: true},
		"a long base": {page: `<head><base href="https://other.org/` + long(maxAddress) + `"></head><a href="p">p</a> <a href="` + long(maxAddress+1) + `">q</a>`,
			want: "[p](https://example.org/a/p) q", links: true},
		"no links":        {page: `see <a href="../c">this</a>.`, want: "see this."},
		"entities":        {page: "a&nbsp;b &lt;c&gt; &amp;", want: "a b <c> &"},
		"powers":          {page: "<p>A light year is 9.46&times;10<sup>15</sup> m; 100<sup>2</sup> = 10000; H<sub>2</sub>O</p>", want: "A light year is 9.46×10^15 m; 100^2 = 10000; H2O"},
		"further powers":  {page: "10<sup>-3</sup> 10<sup>&minus;3</sup> x<sup>n+1</sup>y e<sup>x<sup>2</sup></sup> 2<sup>3</sup>4 m<sup>2</sup>. <span>10</span><sup><i>9</i></sup> 10 <sup>8</sup>", want: "10^-3 10^−3 x^(n+1)y e^(x^2) 2^(3)4 m^2. 10^9 10^8"},
		"raised cents":    {page: "$49<sup>99</sup> €1,299<sup>00</sup>/month $10<sup>12</sup> $5<sup>2</sup> 49<sup>99</sup>", want: "$49.99 €1,299.00/month $10^12 $5^2 49^99"},
		"no powers":       {page: "the 4<sup>th</sup> of 12<sup>[3]</sup> Acme<sup>&reg;</sup> 5<sup>*</sup>", want: "the 4th of 12[3] Acme® 5*"},
		"indices":         {page: "1011<sub>2</sub> log<sub>2</sub>8 log<sub>2</sub> 8 v<sub>max</sub> Ca(OH)<sub>2</sub> MgCl<sub>2</sub> x<sub>1</sub> CO<sub>2</sub>", want: "1011_2 log_(2)8 log_2 8 v_max Ca(OH)2 MgCl2 x1 CO2"},
		"fractions":       {page: "2<sup>1</sup>/<sub>2</sub> and <sup>3</sup>&frasl;<sub>4</sub> and 2&frac12;", want: "2 1/2 and 3⁄4 and 2½"},
		"styles":          {page: `10<span style="vertical-align: super">15</span> <span style="display:none">7003285000000000000♠</span>2850 <span style="visibility: hidden">0</span>5`, want: "10^15 2850 5"},
		"raised by style": {page: `10<span style="vertical-align: 0.4em; font-size:70%">15</span> 10<span style="position: relative; top: -.5em">6</span> 10<span class="sup">7</span> x<span style="vertical-align:-2px">max</span> 1<span style="vertical-align:0">2</span>3`, want: "10^15 10^6 10^7 x_max 123"},
		"notes":           {page: `In 2019<sup><a href="#fn2">2</a></sup> it was 10<sup><a href="/powers">3</a></sup>, 100<a href="#fn1"><sup>1</sup></a>.`, want: "In 2019[2] it was 10^3, 100[1]."},
		"blocks by name":  {page: "<address>13</address>14<fieldset><legend>15</legend>16</fieldset><center>17</center>18<menu><li>19</menu>20", want: "13\n\n14\n\n15\n\n16\n\n17\n\n18\n\n- 19\n\n20"},
		"blocks by style": {page: `<span style="display:block">12</span><span style="display: flex">34</span>5<span>6</span>`, want: "12\n34\n56"},
		"struck text":     {page: "<del>1</del><ins>2</ins> <s>99</s> 49 <p>was <del> 5 </del> 6", want: "~~1~~2 ~~99~~ 49\n\nwas ~~5~~ 6"},
		"struck by style": {page: `was <span style="text-decoration: line-through">$20</span> $15 <a href="/p" style="text-decoration-line:line-through">x</a><p style="color:red; text-decoration: red LINE-THROUGH 2px"> a <b>b</b></p>c<ul><li style="text-decoration:line-through">d<li>e</ul><span style="text-decoration:underline">f</span>`,
			want: "was ~~$20~~ $15 ~~[x](https://example.org/p)~~\n\n~~a b~~\n\nc\n\n- ~~d~~\n- e\n\nf", links: true},
		"struck cells":       {page: `<table><tr style="text-decoration:line-through"><td>a<td>1<tr><td style="text-decoration:line-through">b<td>2</table>`, want: "~~a~~ | ~~1~~\n~~b~~ | 2"},
		"isotopes":           {page: `<p><sup>14</sup>C dating, <sup>235</sup>U and carbon <sup>13</sup>C; x <sup>2</sup> + (a) <sup>2</sup>, 10 <sup>8</sup>m`, want: "14C dating, ^235U and carbon ^13C; x^2 + (a)^2, 10^8m"},
		"ruby":               {page: `<ruby>東<rp>（</rp><rt>とう</rt><rp>）</rp>京<rt>きょう</rt></ruby>へ <ruby>漢 <rt>hàn</rt></ruby>`, want: "東(とう)京(きょう)へ 漢(hàn)"},
		"ordered lists":      {page: "<ol start=5><li>a<li>b<li value=9>c<li>d</ol><ol reversed><li>a<li>b</ol><ol type=a><li>x<li>y</ol><ol type=I start=4><li>z</ol>", want: "5. a\n6. b\n9. c\n10. d\n\n2. a\n1. b\n\na. x\nb. y\n\nIV. z"},
		"rows reach down":    {page: "<table><tr><th>year<th>name<th>n<tr><td rowspan=2>2020<td>a<td>1<tr><td>b<td>2<tr><td>2021<td>c<td>3</table>", want: "year | name | n\n2020 | a | 1\n2020 | b | 2\n2021 | c | 3"},
		"columns":            {page: "<table><tr><th colspan=3>Rivers<tr><th rowspan=2>name<th colspan=2>km<tr><th>a<th>b<tr><td>Nile<td>1<td>2</table>", want: "Rivers\nname | km | km\nname | a | b\nNile | 1 | 2"},
		"the last column":    {page: "<table><tr><td>a<td>b<td rowspan=3>c<tr><td>d<td>e<tr><td>f<td>g</table>", want: "a | b | c\nd | e | c\nf | g | c"},
		"rows to the end":    {page: "<table><tbody><tr><td rowspan=0>a<td>1<tr><td>2<tbody><tr><td>b<td>3</table>", want: "a | 1\na | 2\nb | 3"},
		"a bar in a cell":    {page: "<table><tr><td>7|8<td>9</table>", want: `7\|8 | 9`},
		"empty cells":        {page: "<table><tr><td>a<td><td>b<tr><td><td>c<td></table>", want: "a | | b\n| c |"},
		"lines of a cell":    {page: "<table><tr><td>12<br>345<td>10<sup>3</sup><td>a<br>b</table>", want: "12; 345 | 10^3 | a b"},
		"a table in a table": {page: "<table><tr><td>x<table><tr><td>a<td>b<tr><td>c<td>d</table></table>", want: "x\n\na | b\nc | d"},
		"a formula":          {page: `<math alttext="{\displaystyle x^{2}}"><mi>x</mi><mn>2</mn></math> and <math><semantics><mn>1</mn><annotation encoding="application/x-tex">10^{3}</annotation></semantics></math>`, want: "x^{2} and 10^{3}"},
		"MathML":             {page: "<math><msup><mn>10</mn><mn>15</mn></msup><mo>+</mo><mfrac><mn>1</mn><mrow><mi>x</mi><mo>+</mo><mn>2</mn></mrow></mfrac><msqrt><mn>2</mn></msqrt></math>", want: "10^15+ 1/(x+2) √(2)"},
		"scripts of MathML":  {page: "<math><mmultiscripts><mi>U</mi><mn>2</mn><none/><mprescripts/><mn>92</mn><mn>235</mn></mmultiscripts></math>", want: "_92^235U_2"},
		"no line in MathML":  {page: `<math><mn>2</mn><mo>(</mo><mfrac linethickness="0pt"><mn>10</mn><mi>k</mi></mfrac><mo>)</mo><mfrac linethickness="1"><mn>1</mn><mn>2</mn></mfrac></math>`, want: `2({10 \atop k}) 1/2`},
		"a binomial alone":   {page: `<math><mn>2</mn><mfrac linethickness="0"><mn>10</mn><mn>3</mn></mfrac><mn>4</mn></math>`, want: `2{10 \atop 3}4`},
		"unseen in MathML":   {page: `<math><mphantom><mn>5</mn></mphantom><maction><mn>1</mn><mn>2</mn></maction><menclose notation="updiagonalstrike"><mn>3</mn></menclose></math>`, want: "1~~3~~"},
		"brackets of MathML": {page: `<math><mfenced><mn>1</mn><mn>2</mn></mfenced><mfenced open="[" close="]" separators=";"><mn>3</mn><mn>4</mn></mfenced></math>`, want: "(1,2)[3;4]"},
		"a fallback":         {page: `<p><math alttext="10^{15}"></math><img class="mwe-math-fallback-image" alt="10^{15}"></p>`, want: "10^{15}"},
		"many pictures":      {page: "<p>" + strings.Repeat(`<img class="math fallback" alt="">`, 1<<16) + "1", want: "1"},
		"formulas of pages": {page: `<span style="display: none;"><math alttext="{\displaystyle 10^{15}}"><mn>1015</mn></math></span><img class="mwe-math-fallback-image-inline" aria-hidden="true" alt="{\displaystyle 10^{15}}"> <img class="tex" alt="2^3"> <script type="math/tex">5^2</script>`,
			want: "10^{15} 2^3 5^2"},
		"invisible":  {page: "1&shy;000 1&#8203;000 1<wbr>000 1&nbsp;000", want: "1000 1000 1000 1 000"},
		"wide spans": {page: "<table><tr><td colspan=1000000>a<td rowspan=-1>b</table>", want: "a"},
		"no markup":  {page: "just text", want: "just text"},
		"nothing":    {page: "", want: ""},
	} {
		got, err := readable(strings.NewReader(c.page), base, c.links)
		if err != nil || got != c.want {
			t.Errorf("%s: got %q, error %v; want %q", name, got, err, c.want)
		}
	}
}

// TestManyScripts: memory for the scripts of a base, and so the time, is linear in their number.
func TestManyScripts(t *testing.T) {
	page, base := "<math><mmultiscripts>"+strings.Repeat("<mi>a</mi>", 1<<15)+"</mmultiscripts></math>", &url.URL{}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	text, err := readable(strings.NewReader(page), base, false)
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; err != nil || len(text) != 1<<16-1 || used > 200<<20 {
		t.Errorf("%d bytes of text, %d MiB of memory, error %v", len(text), used>>20, err)
	}
}

func FuzzReadable(f *testing.F) {
	f.Add("<title>T</title><table><tr><td>a<td>b</table><pre> x\n y</pre><a href='?q'>l</a><ul><li>x", true)
	f.Add("<table><tr><td rowspan=0 colspan=9>a<sup>2<sub>3</table><ol reversed><li value=x><math><mfrac><mn>1", true)
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
		if plain := strings.Join(strings.Fields(invisible.Replace(page)), " "); !strings.ContainsAny(page, "<&\x00") && text != plain {
			t.Errorf("%q becomes %q", page, text)
		}
	})
}
