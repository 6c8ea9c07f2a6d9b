package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
)

// small is a byte-level tokenizer.json. Tests change parts of it.
const small = `{"version":"1.0","truncation":null,"padding":null,
"added_tokens":[{"id":3,"content":"<e>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
"post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
"model":{"type":"BPE","unk_token":null,"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}}`

// hostile has files and the error that each must cause.
var hostile = []struct{ name, tokenizer, config, want string }{
	{"empty", "", "{}", "ends in the middle"},
	{"cut short", small[:len(small)-9], "{}", "ends in the middle"},
	{"trailing", small + "{}", "{}", "text follows"},
	{"not an object", "[]", "{}", "want an object"},
	{"duplicate key", strings.Replace(small, `"padding":null`, `"version":"2"`, 1), "{}", `"version" occurs twice`},
	{"duplicate token", strings.Replace(small, `"b":1`, `"a":1`, 1), "{}", `"a" occurs twice`},
	{"duplicate id", strings.Replace(small, `"b":1`, `"b":0`, 1), "{}", "have the same id 0"},
	{"id too large", strings.Replace(small, `"b":1`, `"b":2097152`, 1), "{}", "not an integer between"},
	{"id gap", strings.Replace(small, `"b":1`, `"b":2000000`, 1), "{}", "the largest id is 2000000"},
	{"id negative", strings.Replace(small, `"b":1`, `"b":-1`, 1), "{}", "not an integer between"},
	{"id float", strings.Replace(small, `"b":1`, `"b":1.0`, 1), "{}", "not an integer between"},
	{"merge out of vocabulary", strings.Replace(small, `"a b"`, `"a c"`, 1), "{}", "merge 0"},
	{"merge of three", strings.Replace(small, `"a b"`, `"a b a"`, 1), "{}", "not a pair"},
	{"merge result", strings.Replace(small, `"a b"`, `"b a"`, 1), "{}", "merge 0"},
	{"merge a number", strings.Replace(small, `"a b"`, `7`, 1), "{}", "want a string or an array"},
	{"no merges", strings.Replace(small, `,"merges":["a b"]`, ``, 1), "{}", "merges is missing"},
	{"no vocabulary", strings.Replace(small, `{"a":0,"b":1,"ab":2}`, `{}`, 1), "{}", "vocabulary is empty"},
	{"unk unknown", strings.Replace(small, `"unk_token":null`, `"unk_token":"u"`, 1), "{}", `unk_token "u"`},
	{"dropout", strings.Replace(small, `"unk_token":null`, `"dropout":0.1`, 1), "{}", "dropout"},
	{"suffix", strings.Replace(small, `"unk_token":null`, `"end_of_word_suffix":"</w>"`, 1), "{}", "end_of_word_suffix"},
	{"model type", strings.Replace(small, `"BPE"`, `"Unigram"`, 1), "{}", `"Unigram" is not supported`},
	{"model type with another vocabulary", strings.NewReplacer(`"BPE"`, `"Unigram"`, `{"a":0,"b":1,"ab":2}`, `[["a",0.0],["b",-1.5]]`).Replace(small), "{}",
		`model: type: "Unigram" is not supported`},
	{"unknown key", strings.Replace(small, `"version"`, `"verison"`, 1), "{}", "verison: unknown key"},
	{"normalizer", strings.Replace(small, `"normalizer":null`, `"normalizer":{"type":"Nmt"}`, 1), "{}", `normalizer "Nmt" is not supported`},
	{"prepend of a number", strings.Replace(small, `"normalizer":null`, `"normalizer":{"type":"Prepend","prepend":7}`, 1), "{}", "Prepend: prepend is of type"},
	{"replace by much", strings.Replace(small, `"normalizer":null`, `"normalizer":{"type":"Replace","pattern":{"String":"a"},"content":"`+strings.Repeat("x", 65)+`"}`, 1), "{}", "65 bytes"},
	{"replace by much in steps", strings.Replace(small, `"normalizer":null`, `"normalizer":{"type":"Sequence","normalizers":[`+strings.Repeat(
		`{"type":"Replace","pattern":{"String":"a"},"content":"aaaaaaaa"},`, 5)+`{"type":"NFC"}]}`, 1), "{}", "512 times"},
	{"replace nothing", strings.Replace(small, `"normalizer":null`, `"normalizer":{"type":"Replace","pattern":{"String":""},"content":"a"}`, 1), "{}", "pattern is neither"},
	{"pre-tokenizer", strings.Replace(small, `{"type":"ByteLevel","add_prefix_space":false`, `{"type":"Metaspace","add_prefix_space":false`, 1), "{}", `Metaspace: unknown key "trim_offsets"`},
	{"metaspace of two", smallStep(`{"type":"Metaspace","replacement":"▁▁","prepend_scheme":"first"}`), "{}", "not one character"},
	{"metaspace scheme", smallStep(`{"type":"Metaspace","replacement":"▁","prepend_scheme":"last"}`), "{}", `prepend_scheme "last"`},
	{"metaspace contradicts", smallStep(`{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","add_prefix_space":false}`), "{}", "add_prefix_space is false"},
	{"byte level in the middle", smallStep(`{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]}`), "{}", "ByteLevel before another"},
	{"behavior", smallStep(`{"type":"Split","pattern":{"String":"a"},"behavior":"Doubled","invert":false}`), "{}", "behavior Doubled"},
	{"slow pattern", smallStep(`{"type":"Split","pattern":{"Regex":"(a|a?)+$b"},"behavior":"Isolated","invert":false}`), "{}", "is not supported"},
	{"class in a class", smallStep(`{"type":"Split","pattern":{"Regex":"[a[b]]"},"behavior":"Isolated","invert":false}`), "{}", "a class within a class"},
	{"intersection", smallStep(`{"type":"Split","pattern":{"Regex":"[a-z&&^b]"},"behavior":"Isolated","invert":false}`), "{}", "an intersection of classes"},
	{"not a pattern", smallStep(`{"type":"Split","pattern":{"Regex":"(a"},"behavior":"Isolated","invert":false}`), "{}", "is not supported"},
	{"pattern", strings.Replace(small, `"pre_tokenizer":{`, `"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\d"},"behavior":"Isolated","invert":false}]},"x":{`, 1), "{}", "unknown key"},
	{"decoder", strings.Replace(small, `"decoder":{"type":"ByteLevel"`, `"decoder":{"type":"WordPiece"`, 1), "{}", `decoder "WordPiece"`},
	{"post-processor", strings.Replace(small, `"post_processor":null`, `"post_processor":{"type":"BertProcessing"}`, 1), "{}", "BertProcessing: cls is not"},
	{"added id", strings.Replace(small, `"id":3`, `"id":1`, 1), "{}", "have the same id 1"},
	{"added twice", strings.Replace(small, `"added_tokens":[`, `"added_tokens":[{"id":4,"content":"<e>"},`, 1), "{}", "occurs twice"},
	{"added contradicts", strings.Replace(small, `"content":"<e>"`, `"content":"b"`, 1), "{}", "1 in the vocabulary"},
	{"added far", small, `{"added_tokens_decoder":{"2000000":{"content":"<f>","special":true}}}`, "far beyond"},
	{"added decoder contradicts", small, `{"added_tokens_decoder":{"9":{"content":"<e>","special":true}}}`, "the id 3 here and 9"},
	{"config not an object", small, `[]`, "tokenizer_config.json"},
	{"token of a wrong type", small, `{"eos_token":7}`, "eos_token"},
	{"special tokens without end", small, `{"additional_special_tokens":[` + strings.Repeat(`"<e>",`, maxAdded) + `"<e>"]}`, "additional_special_tokens: more than 65536"},
	{"template malformed", small, `{"chat_template":"{% if %}"}`, "chat template"},
	{"template includes", small, `{"chat_template":"{% include '/etc/passwd' %}"}`, "include"},
	{"deep", `{"normalizer":` + strings.Repeat("[", 5000), "{}", "nested deeper"},
}

// smallStep returns small with another pre-tokenizer.
func smallStep(step string) string {
	return strings.Replace(small, `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
"post`, step+`,
"post`, 1)
}

func TestHostileFiles(t *testing.T) {
	if _, err := Parse(map[string][]byte{fileTokenizer: []byte(small), fileConfig: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	for _, h := range hostile {
		_, err := Parse(map[string][]byte{fileTokenizer: []byte(h.tokenizer), fileConfig: []byte(h.config)})
		if err == nil || !strings.Contains(err.Error(), h.want) {
			t.Errorf("%s: got %v, want an error with %q", h.name, err, h.want)
		}
	}
	// An empty file, tiktoken's format, and a pointer of Git LFS.
	for _, text := range []string{"", "IQ== 0\nIg== 1\n", "version https://git-lfs.github.com/spec/v1\n"} {
		_, err := Parse(map[string][]byte{fileModel: []byte(text)})
		if err == nil || !strings.Contains(err.Error(), "no pieces: not a SentencePiece model. If it is tiktoken's, write tokenizer.json") {
			t.Errorf("tokenizer.model with %q: got %v", text, err)
		}
	}
	for _, name := range []string{fileTokenizer, fileModel, fileTemplate} {
		_, err := loadFS(fstest.MapFS{name: {Data: []byte("version https://git-lfs.github.com/spec/v1\n")}})
		if err == nil || !strings.Contains(err.Error(), name+": this is a pointer of Git LFS") {
			t.Errorf("%s is a pointer of Git LFS: %v", name, err)
		}
	}
	if _, err := Parse(nil); err == nil || !strings.Contains(err.Error(), "no tokenizer.json") || !strings.Contains(err.Error(), "AutoTokenizer") {
		t.Errorf("no files: got %v", err)
	}
}

func parseSmall(t *testing.T, config string, replacements ...string) *Tokenizer {
	t.Helper()
	text := strings.NewReplacer(replacements...).Replace(small)
	tok, err := loadFS(fstest.MapFS{fileTokenizer: {Data: []byte(text)}, fileConfig: {Data: []byte(config)},
		fileGeneration: {Data: []byte(`{"eos_token_id":[3,1]}`)}})
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// The largest allowed number of special tokens is read in one pass. If each token were searched for in a list, this would take minutes.
func TestManySpecialTokens(t *testing.T) {
	var list, ids strings.Builder
	for i := range maxAdded - 1 {
		fmt.Fprintf(&list, `"<x%d>",`, i)
		fmt.Fprintf(&ids, `"<x%d>":%d,`, i, 4+i)
	}
	tok, err := Parse(map[string][]byte{fileTokenizer: []byte(small), fileConfig: []byte(`{"additional_special_tokens":[` + list.String() + `"<e>"]}`),
		fileAdded: []byte("{" + ids.String() + `"<e>":3}`)})
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.VocabSize(); got != 4+maxAdded-1 {
		t.Errorf("%d tokens", got)
	}
	if id, ok := tok.ID("<x7>"); !ok || id != 4+7 {
		t.Errorf("<x7> has the id %d", id)
	}
}

// TestLegacyFiles: special_tokens_map.json has priority over tokenizer_config.json, and added_tokens.json adds tokens, as in transformers.
// Both are ignored if tokenizer_config.json has added_tokens_decoder.
func TestLegacyFiles(t *testing.T) {
	const names, added = `{"eos_token":"<e>"}`, `{"<f>":4,"<e>":9,"<g>":5}`
	for name, test := range map[string]struct {
		config string
		eos    int32
		known  bool
	}{
		"older":   {`{"eos_token":"b","pad_token":"<g>"}`, 3, true},
		"current": {`{"eos_token":"b","added_tokens_decoder":{"3":{"content":"<e>","special":true}}}`, 1, false},
	} {
		tok, err := Parse(map[string][]byte{fileTokenizer: []byte(small), fileConfig: []byte(test.config), fileSpecial: []byte(names), fileAdded: []byte(added)})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		id, known := tok.ID("<f>")
		if tok.EOS() != test.eos || known != test.known || known && (id != 4 || !slices.Equal(tok.Encode("a<f><g>"), []int32{0, 4, 5}) || tok.Pad() != 5) {
			t.Errorf("%s: EOS %d, <f> %d %v, want EOS %d, <f> known %v", name, tok.EOS(), id, known, test.eos, test.known)
		}
	}
	for _, bad := range []string{`[]`, `{"<f>":"4"}`, `{"<f>":-1}`, `{"<f>":4,"<g>":4}`} {
		if _, err := Parse(map[string][]byte{fileTokenizer: []byte(small), fileAdded: []byte(bad)}); err == nil {
			t.Errorf("added_tokens.json %s is accepted", bad)
		}
	}
}

func TestUnknownBytes(t *testing.T) {
	for _, c := range []struct {
		name, model string
		want        []int32
	}{
		{"dropped", `"unk_token":null`, []int32{2, 0}},
		{"unk", `"unk_token":"b"`, []int32{2, 1, 1, 0}},
		{"fused unk", `"unk_token":"b","fuse_unk":true`, []int32{2, 1, 0}},
	} {
		tok := parseSmall(t, "{}", `"unk_token":null`, c.model)
		if got := tok.Encode("abxya"); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	// a missing byte whose character exists as <0x..> tokens: x is one byte, 78
	tok := parseSmall(t, "{}", `"unk_token":null`, `"unk_token":"b","byte_fallback":true`, `"ab":2`, `"ab":2,"<0x78>":4`)
	if got, want := tok.Encode("axy"), []int32{0, 4, 1}; !slices.Equal(got, want) {
		t.Errorf("byte fallback: got %v, want %v", got, want)
	}
}

func TestIgnoreMerges(t *testing.T) {
	vocab := []string{`"ab":2`, `"ab":2,"aba":4`}
	if got := parseSmall(t, "{}", vocab...).Encode("aba"); !slices.Equal(got, []int32{2, 0}) {
		t.Errorf("merging: got %v", got)
	}
	ignoring := append(vocab, `"unk_token":null`, `"ignore_merges":true`)
	if got := parseSmall(t, "{}", ignoring...).Encode("aba"); !slices.Equal(got, []int32{4}) {
		t.Errorf("ignore_merges: got %v", got)
	}
}

func TestAddedTokens(t *testing.T) {
	flags := `"single_word":false,"lstrip":false,"rstrip":false,"normalized":false`
	for _, c := range []struct {
		name, flags, text string
		want              []int32
	}{
		{"plain", flags, "a<e>b", []int32{0, 3, 1}},
		{"lstrip", strings.Replace(flags, `"lstrip":false`, `"lstrip":true`, 1), "a \n<e>b", []int32{0, 3, 1}},
		{"rstrip", strings.Replace(flags, `"rstrip":false`, `"rstrip":true`, 1), "a<e> \u3000b", []int32{0, 3, 1}},
		{"single word", strings.Replace(flags, `"single_word":false`, `"single_word":true`, 1), "a<e> <e>b<e>", []int32{0, 1}},
		{"single word alone", strings.Replace(flags, `"single_word":false`, `"single_word":true`, 1), "a <e> b", []int32{0, 3, 1}},
	} {
		tok := parseSmall(t, "{}", flags, c.flags)
		if got := tok.Encode(c.text); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// TestAddedWhiteSpace: a token of white space is also found in the white space that rstrip gives to the token before. The ids are
// those of tokenizers 0.23.3.
func TestAddedWhiteSpace(t *testing.T) {
	const flags = `"single_word":false,"lstrip":false,"rstrip":false`
	for _, c := range []struct {
		flags, text string
		want        []int32
	}{
		{`"lstrip":false,"rstrip":true`, "a  b ", []int32{0, 3, 3, 1, 3}},
		{`"lstrip":true,"rstrip":true`, "a  b", []int32{0, 3, 1}}, // the first token has all white space
		{`"lstrip":false,"rstrip":false`, "a  b", []int32{0, 3, 3, 1}},
	} {
		tok := parseSmall(t, "{}", flags, c.flags, `"content":"<e>"`, `"content":" "`)
		if got := tok.Encode(c.text); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q has the ids %v, want %v", c.flags, c.text, got, c.want)
		}
	}
	long := strings.Repeat(" ", 1<<20) // seconds if each token searched for the end of the white space
	if got := parseSmall(t, "{}", flags, `"rstrip":true`, `"content":"<e>"`, `"content":" "`).Encode(long); len(got) != len(long) {
		t.Errorf("%d tokens for %d spaces", len(got), len(long))
	}
}

func TestNormalizedAddedToken(t *testing.T) {
	tok := parseSmall(t, "{}", `"normalizer":null`, `"normalizer":{"type":"NFC"}`, `"content":"<e>"`, `"content":"e\u0301"`,
		`"normalized":false`, `"normalized":true`)
	if got, want := tok.Encode("a\u00e9be\u0301"), []int32{0, 3, 1, 3}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestDecodeNormalizedAddedToken: the text of an added token with normalized true is its normalised content. The texts are those of
// tokenizers 0.23.3 for these ids.
func TestDecodeNormalizedAddedToken(t *testing.T) {
	const (
		byteLevel = `{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`
		prepend   = `{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]}`
		spaces    = `{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"Fuse"},` +
			`{"type":"Strip","content":" ","start":1,"stop":0}]}`
	)
	for _, c := range []struct {
		normalizer, decoder, content string
		normalized                   bool
		want                         string // of a, the token, b
	}{
		{prepend, spaces, "tok", true, "a tokb"},
		{prepend, spaces, "tok", false, "atokb"},
		{`{"type":"Lowercase"}`, byteLevel, "TOK", true, "atokb"},
		{`{"type":"Lowercase"}`, byteLevel, "TOK", false, "aTOKb"},
		{`{"type":"NFC"}`, byteLevel, "e\u0301", true, "a\ufffdb"}, // é stands for the byte 0xe9
		{`{"type":"Strip","strip_left":true,"strip_right":true}`, `{"type":"Fuse"}`, "  ", true, "ab"},
		{`null`, byteLevel, "TOK", true, "aTOKb"},
	} {
		tok := parseSmall(t, "{}", `"normalizer":null`, `"normalizer":`+c.normalizer, `"decoder":`+byteLevel, `"decoder":`+c.decoder,
			`"content":"<e>"`, `"content":"`+c.content+`"`, `"normalized":false`, fmt.Sprintf(`"normalized":%v`, c.normalized))
		if got := tok.Decode([]int32{0, 3, 1}, false); got != c.want {
			t.Errorf("%q after %s is decoded to %q, want %q", c.content, c.normalizer, got, c.want)
		}
	}
}

func TestConfigNamesAndFlags(t *testing.T) {
	tok := parseSmall(t, `{"eos_token":{"content":"<e>"},"pad_token":"ab","bos_token":null,"unk_token":"<new>",
		"added_tokens_decoder":{"3":{"content":"<e>","special":false,"normalized":false}}}`)
	if tok.EOS() != 3 || tok.Pad() != 2 || tok.BOS() != NoID || tok.Unk() != 4 || tok.VocabSize() != 5 {
		t.Errorf("eos %d, pad %d, bos %d, unk %d, size %d", tok.EOS(), tok.Pad(), tok.BOS(), tok.Unk(), tok.VocabSize())
	}
	if !tok.Special(3) || !tok.Special(2) || tok.Special(0) || tok.Special(-1) || tok.Special(99) {
		t.Error("named tokens must be special and others must not")
	}
	if got := tok.StopIDs(); !slices.Equal(got, []int32{3, 1}) {
		t.Errorf("StopIDs: got %v", got)
	}
	if got := tok.Encode("b<new>"); !slices.Equal(got, []int32{1, 4}) {
		t.Errorf("a named token that only the config has: got %v", got)
	}
}

// TestGenerationConfig: the tokenizer accepts each generation_config.json that the weights accept.
func TestGenerationConfig(t *testing.T) {
	for text, want := range map[string][]int32{"": {3}, " \n": {3}, "\ufeff": {3}, "{}": {3}, `{"eos_token_id":null}`: {3}, `{"eos_token_id":-1}`: {3},
		`{"eos_token_id":[-1,2]}`: {3, 2}} {
		files := map[string][]byte{fileTokenizer: []byte(small), fileConfig: []byte(`{"eos_token":"<e>"}`), fileGeneration: []byte(text)}
		tok, err := Parse(files)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := tok.StopIDs(); !slices.Equal(got, want) {
			t.Errorf("%q: the ids %v end a turn, want %v", text, got, want)
		}
		if _, kept := tok.Files()[fileGeneration]; kept != strings.Contains(text, "{") {
			t.Errorf("%q: a checkpoint has the file: %v", text, kept)
		}
	}
	for _, text := range []string{"{", "[]", `{"eos_token_id":-2}`, `{"eos_token_id":"2"}`} {
		if _, err := Parse(map[string][]byte{fileTokenizer: []byte(small), fileGeneration: []byte(text)}); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

func TestTemplateProcessing(t *testing.T) {
	tok := parseSmall(t, "{}", `"post_processor":null`, `"post_processor":{"type":"Sequence","processors":[
		{"type":"ByteLevel","trim_offsets":false},{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<e>","type_id":0}},
		{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"z","type_id":0}}],"pair":[],
		"special_tokens":{"<e>":{"id":"<e>","ids":[3],"tokens":["<e>"]},"z":{"id":"z","ids":[0,1],"tokens":["a","b"]}}}]}`)
	if got, want := tok.EncodeWithSpecial("ab"), []int32{3, 2, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestConcurrentUse(t *testing.T) {
	tok := byteComplete(t)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 200 {
				text := fmt.Sprintf("the %d abab %d é", i%17, g)
				if got := tok.Decode(tok.Encode(text), true); got != text {
					t.Errorf("got %q, want %q", got, text)
					return
				}
				if _, err := tok.Render(Chat{Messages: Messages(Message{Content: text})}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// TestTokenBeyond: a model must have a row for each token of texts, turns and the chat template. Other tokens do not need one.
func TestTokenBeyond(t *testing.T) {
	for _, c := range []struct {
		config string
		rows   int
		id     int32
		text   string
	}{
		{"{}", 4, NoID, ""},
		{"{}", 3, 3, "<e>"}, // ends a turn
		{"{}", 1, 1, "b"},
		{`{"added_tokens_decoder":{"4":{"content":"<tool_call>","special":false}}}`, 4, 4, "<tool_call>"},
		{`{"added_tokens_decoder":{"4":{"content":"<image>","special":true}}}`, 4, NoID, ""},
		{`{"added_tokens_decoder":{"4":{"content":"<image>","special":true}},"chat_template":"{{ messages }}<image>"}`, 4, 4, "<image>"},
		{`{"bos_token":"<s>"}`, 4, 4, "<s>"},
	} {
		if id, text, ok := parseSmall(t, c.config).TokenBeyond(c.rows); id != c.id || text != c.text || ok != (c.id != NoID) {
			t.Errorf("%s, %d rows: %d, %q, %v", c.config, c.rows, id, text, ok)
		}
	}
}
