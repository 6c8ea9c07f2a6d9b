package tokenizer

import (
	"fmt"
	"maps"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/convert"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// fromGGUF builds the files that Parse reads (tokenizer.json, tokenizer_config.json, chat_template.jinja) from the metadata of
// a GGUF file, see [convert.FromGGUF].
func fromGGUF(meta map[string]any) (files map[string][]byte, err error) {
	tokenizer, config, err := convert.FromGGUF(meta)
	if err == nil {
		files, err = encodeFiles(map[string]*ordered.Object{fileTokenizer: tokenizer, fileConfig: config})
	}
	if err != nil {
		return nil, withLocation("GGUF tokenizer", err)
	}
	if template, ok := meta["tokenizer.chat_template"].(string); ok {
		files[fileTemplate] = []byte(template)
	}
	if template, ok := meta["tokenizer.chat_template."+toolTemplate].(string); ok {
		files[templateFolder+"/"+toolTemplate+".jinja"] = []byte(template)
	}
	return files, nil
}

// ggufSamples are texts whose ids must not change when the written vocabulary is read: contractions, digits, spaces, lines,
// other scripts, marks.
var ggufSamples = []string{
	"", "Hello world", " It's 2026, isn't it? I'LL see.", "a\n\n\tb   c  \r\n", "1234567890 12 3", "naïve Ångström e\u0301 ﬁ", "日本語のテキスト 漢字かな",
	"Привет, мир! שלום مرحبا",
	"🙂👩‍👩‍👧 emoji", "x = {'a': [1, 2.5e-3]} # code\n    return x", "https://example.org/a_b?c=d&e", "…—“quoted” ²³ ½ ٣",
}

// GGUF returns the metadata of the tokenizer for a GGUF file, in the types that LoadCheckpoint reads. rows is the number of rows
// of the embedding. Only byte-level BPE is supported. GGUF returns an error that names the vocabulary, pre-tokenizer or
// setting for which the format has no key. It also returns an error if a reader of the metadata would split a text
// differently.
func (t *Tokenizer) GGUF(rows int) (map[string]any, error) {
	s, err := readSpec(t.files[fileTokenizer])
	if err != nil {
		return nil, withLocation(fileTokenizer, err)
	}
	settings, err := bpeOptions(s.options)
	switch {
	case err != nil:
		return nil, err
	case s.kind != "BPE":
		return nil, fmt.Errorf("GGUF: a tokenizer of the kind %s cannot be written: only byte-level BPE can", s.kind)
	}
	pre, err := ggufPreOf(s, settings.IgnoreMerges)
	if err != nil {
		return nil, fmt.Errorf("GGUF: %w", err)
	}
	meta := map[string]any{convert.GGUFPrefix + "model": "gpt2", convert.GGUFPrefix + "pre": pre}
	if err := ggufTokens(s, t.added.list, rows, meta); err != nil {
		return nil, fmt.Errorf("GGUF: %w", err)
	}
	merges := make([]string, len(s.merges))
	for i, pair := range s.merges {
		merges[i] = pair[0] + " " + pair[1]
	}
	meta[convert.GGUFPrefix+"merges"] = merges
	for key, id := range map[string]int32{"bos_token_id": t.BOS(), "eos_token_id": t.EOS(), "unknown_token_id": t.Unk(), "padding_token_id": t.Pad()} {
		if id != NoID {
			meta[convert.GGUFPrefix+key] = int64(id)
		}
	}
	whole, plain := t.EncodeWithSpecial("a"), t.Encode("a")
	meta[convert.GGUFPrefix+"add_bos_token"] = len(whole) > 0 && whole[0] == t.BOS() && t.BOS() != plain[0]
	meta[convert.GGUFPrefix+"add_eos_token"] = len(whole) > 1 && whole[len(whole)-1] == t.EOS() && len(whole) > len(plain)
	if err := ggufTemplates(t.files, meta); err != nil {
		return nil, err
	}
	return meta, t.sameAsGGUF(meta)
}

// ggufTemplates sets the chat template, and the one for chats with functions.
func ggufTemplates(files map[string][]byte, meta map[string]any) error {
	config, err := readObject(files, fileConfig)
	if err != nil {
		return err
	}
	sources, err := templatesOf(files, config)
	if err != nil {
		return err
	}
	if source, ok := sources[defaultTemplate]; ok {
		meta["tokenizer.chat_template"] = source
	}
	if source, ok := sources[toolTemplate]; ok {
		meta["tokenizer.chat_template."+toolTemplate] = source
	}
	return nil
}

// ggufPreOf returns the value of tokenizer.ggml.pre that stands for normalizer and pre-tokenizer.
func ggufPreOf(s *spec, ignoreMerges bool) (string, error) {
	pre := convert.PreTokenizer{IgnoreMerges: ignoreMerges}
	normalizers, err := flatten(s.normalizer, "normalizers")
	if err != nil {
		return "", err
	}
	for _, c := range normalizers {
		if c.kind != "NFC" || pre.NFC {
			return "", fmt.Errorf("there is no key for the normalizer %s", c.kind)
		}
		pre.NFC = true
	}
	steps, err := flatten(s.preTokenizer, "pretokenizers")
	if err != nil {
		return "", err
	}
	regex := false
	for i, c := range steps {
		switch {
		case c.kind == "Digits" && i == 0:
			if pre.Digits = c.flag("individual_digits", false); !pre.Digits {
				return "", fmt.Errorf("there is no key for the pre-tokenizer Digits without individual_digits")
			}
		case c.kind == "Split":
			if c.regex() == "" || !c.isolates() {
				return "", fmt.Errorf("there is no key for a Split of this kind: only a Regex, Isolated and not inverted, can be written")
			}
			pre.Patterns = append(pre.Patterns, c.regex())
		case c.kind == "ByteLevel" && i == len(steps)-1:
			if regex = c.flag("use_regex", true); c.flag("add_prefix_space", true) {
				return "", fmt.Errorf("there is no key for ByteLevel with add_prefix_space")
			}
		default:
			return "", fmt.Errorf("there is no key for the pre-tokenizer %s at this place", c.kind)
		}
		if c.err != nil {
			return "", c.err
		}
	}
	if len(steps) == 0 || steps[len(steps)-1].kind != "ByteLevel" {
		return "", fmt.Errorf("the last pre-tokenizer is not ByteLevel: only byte-level BPE can be written")
	}
	if name, ok := pre.Name(); ok && regex == (len(pre.Patterns) == 0) {
		return name, nil
	}
	return "", fmt.Errorf("no value of %spre stands for this pre-tokenizer: patterns %q, NFC %v, ignore_merges %v", convert.GGUFPrefix, pre.Patterns, pre.NFC,
		pre.IgnoreMerges)
}

// isolates reports whether a Split isolates its matches.
func (c *component) isolates() bool {
	behaviour, _ := c.object.Get("behavior")
	invert, _ := c.object.Get("invert")
	return behaviour == "Isolated" && (invert == false || invert == nil)
}

// ggufTokens sets the tokens by id, and their types. added holds the added tokens of all files. Rows of the embedding without a
// token get an unused token.
func ggufTokens(s *spec, added []addedToken, rows int, meta map[string]any) error {
	tokens, types := make([]string, rows), make([]int64, rows)
	put := func(text string, id int32, kind int64) error {
		if int(id) >= rows {
			return fmt.Errorf("token %d, %.60q: the embedding has %d rows", id, text, rows)
		}
		tokens[id], types[id] = text, kind
		return nil
	}
	for _, text := range slices.Sorted(maps.Keys(s.vocab)) {
		if err := put(text, s.vocab[text], convert.TokenNormal); err != nil {
			return err
		}
	}
	for _, a := range added {
		if a.lstrip || a.rstrip || a.singleWord {
			return fmt.Errorf("there is no key for lstrip, rstrip and single_word of the added token %.60q", a.content)
		}
		kind := int64(convert.TokenUserDefined)
		if a.special {
			kind = convert.TokenControl
		}
		if err := put(a.content, a.id, kind); err != nil {
			return err
		}
	}
	for id := range tokens {
		if types[id] == 0 {
			tokens[id], types[id] = fmt.Sprintf("[PAD%d]", id), convert.TokenUnused
		}
	}
	meta[convert.GGUFPrefix+"tokens"], meta[convert.GGUFPrefix+"token_type"] = tokens, types
	return nil
}

// sameAsGGUF reads the metadata again, and compares the ids of some texts.
func (t *Tokenizer) sameAsGGUF(meta map[string]any) error {
	files, err := fromGGUF(meta)
	if err != nil {
		return err
	}
	back, err := Parse(files)
	if err != nil {
		return err
	}
	samples := slices.Clone(ggufSamples)
	for _, a := range t.added.list {
		samples = append(samples, a.content)
	}
	for _, text := range samples {
		if got, want := back.EncodeWithSpecial(text), t.EncodeWithSpecial(text); !slices.Equal(got, want) {
			return fmt.Errorf("GGUF: a reader would split %q into %v instead of %v", text, got, want)
		}
	}
	return nil
}
