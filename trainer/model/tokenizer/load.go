package tokenizer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/texts"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/convert"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/format"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// The files that Load reads. One of the first two is required.
const (
	fileTokenizer  = "tokenizer.json"
	fileModel      = "tokenizer.model"
	fileConfig     = "tokenizer_config.json"
	fileTemplate   = "chat_template.jinja"
	fileProcessor  = "chat_template.json" // of the processor of images and texts
	fileSpecial    = "special_tokens_map.json"
	fileAdded      = "added_tokens.json"
	fileGeneration = "generation_config.json"
)

var fileNames = []string{fileTokenizer, fileModel, fileConfig, fileTemplate, fileProcessor, fileSpecial, fileAdded, fileGeneration}

// Load reads a Hugging Face folder: tokenizer.json or, if that is absent, SentencePiece's tokenizer.model. It also reads these
// files if they are present: tokenizer_config.json, chat_template.jinja, chat_template.json, additional_chat_templates/NAME.jinja,
// special_tokens_map.json, added_tokens.json and generation_config.json. An unsupported setting is an error that names it.
func Load(dir string) (*Tokenizer, error) {
	t, err := loadFS(os.DirFS(dir))
	return t, withLocation(dir, err)
}

// LoadCheckpoint reads the tokenizer of the checkpoint at path. gguf is the metadata of its GGUF file, whose values are string, bool,
// int64, []string, []int64 and []float64, or nil if path is a folder (see [Load]).
func LoadCheckpoint(path string, gguf map[string]any) (*Tokenizer, error) {
	if gguf == nil {
		return Load(path)
	}
	files, err := fromGGUF(gguf)
	if err != nil {
		return nil, withLocation(path, err)
	}
	return Parse(files)
}

// loadFS does the same as Load, from the root of a file system.
func loadFS(fsys fs.FS) (*Tokenizer, error) {
	files := map[string][]byte{}
	for _, name := range fileNames {
		data, err := readFile(fsys, name)
		switch {
		case err == nil:
			files[name] = data
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	if _, err := fs.Stat(fsys, "tekken.json"); err == nil && files[fileTokenizer] == nil && files[fileModel] == nil {
		return nil, fmt.Errorf("no %s: tekken.json alone cannot be read. Take %[1]s from the model's repository or from one of the same "+
			"family with transformers' layout, or write it with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)", fileTokenizer)
	}
	if err := readTemplateFiles(fsys, files); err != nil {
		return nil, err
	}
	return Parse(files)
}

func readFile(fsys fs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err == nil {
		err = texts.Fetched(data)
	}
	return data, withLocation(name, err)
}

// Parse does the same as Load, from file contents by name. It ignores other names.
func Parse(files map[string][]byte) (*Tokenizer, error) {
	t := &Tokenizer{files: map[string][]byte{}, named: map[string]string{}}
	for name, data := range files {
		if !slices.Contains(fileNames, name) && !isTemplateFile(name) {
			continue
		}
		if len(data) > maxFileSize {
			return nil, fmt.Errorf("%s: larger than %d MiB", name, maxFileSize>>20)
		}
		t.files[name] = data
		if name != fileModel {
			t.files[name] = texts.Normalize(data)
		}
		if name == fileGeneration && len(bytes.TrimSpace(t.files[name])) == 0 { // as if it were absent, as for the weights
			delete(t.files, name)
		}
	}
	if err := convertModel(t.files); err != nil {
		return nil, err
	}
	s, err := readSpec(t.files[fileTokenizer])
	if err != nil {
		return nil, withLocation(fileTokenizer, err)
	}
	c, err := readConfig(t.files)
	if err != nil {
		return nil, err
	}
	t.named = c.named
	if err := t.build(s, c); err != nil {
		return nil, withLocation(fileTokenizer, err)
	}
	t.setStop(c)
	t.chat, err = readTemplates(t.files)
	return t, err
}

// convertModel makes tokenizer.json from tokenizer.model if only the latter exists. A checkpoint then contains only
// tokenizer.json. If both exist, a checkpoint has both: llama.cpp's converter reads tokenizer.model.
func convertModel(files map[string][]byte) error {
	if files[fileTokenizer] != nil {
		return nil
	}
	data, ok := files[fileModel]
	delete(files, fileModel)
	if !ok {
		return fmt.Errorf("no %s and no %s: write one with transformers, AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)",
			fileTokenizer, fileModel)
	}
	config, err := readObject(files, fileConfig)
	if err != nil {
		return err
	}
	tokenizer, config, err := convert.FromSentencePiece(data, config)
	if err != nil {
		return withLocation(fileModel, err)
	}
	made, err := encodeFiles(map[string]*ordered.Object{fileTokenizer: tokenizer, fileConfig: config})
	for name, data := range made {
		if files[name] == nil {
			files[name] = data
		}
	}
	return withLocation(fileModel, err)
}

func (t *Tokenizer) build(s *spec, c *config) (err error) {
	if t.normalize, err = buildNormalizer(s.normalizer); err != nil {
		return withLocation("normalizer", err)
	}
	var added []addedToken
	if t.vocab, added, err = newVocabulary(s, c); err != nil {
		return err
	}
	t.added = newAddedTokens(added, t.normalize)
	pre, err := buildPreTokenizer(s.preTokenizer)
	if err != nil {
		return withLocation("pre_tokenizer", err)
	}
	t.encoder.steps = pre.steps
	switch s.kind {
	case "BPE":
		t.encoder.model, err = newBPE(s, pre.byteLevel)
	case "WordLevel":
		t.encoder.model, err = newWordLevel(s)
	default:
		return withLocation("model", withLocation("type", errKind(s.kind)))
	}
	if err != nil {
		return withLocation("model", err)
	}
	if t.normalize != nil {
		for _, a := range added {
			if a.normalized { // as tokenizers 0.23.3 does, but not 0.22
				t.vocab.tokens[a.id].bytes = t.normalize(a.content)
			}
		}
	}
	if t.decoder, err = readDecoder(s.decoder, &t.vocab); err != nil {
		return withLocation("decoder", err)
	}
	if t.before, t.after, err = buildPostProcessor(s.postProcessor); err != nil {
		return withLocation("post_processor", err)
	}
	return nil
}

func (t *Tokenizer) setStop(c *config) {
	for _, id := range append([]int32{t.EOS()}, c.stop...) {
		if id != NoID && !slices.Contains(t.stop, id) {
			t.stop = append(t.stop, id)
		}
	}
}

// config is the content of the files next to tokenizer.json.
type config struct {
	named  map[string]string // "bos_token" etc. to token strings
	others []string          // the names in named that are not in namedTokens, such as image_token
	extra  []string          // additional_special_tokens
	known  map[string]bool   // the tokens in extra
	added  []addedToken      // added_tokens_decoder, by id
	legacy []addedToken      // added_tokens.json, by id; read only without added_tokens_decoder
	stop   []int32
}

var namedTokens = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// specials returns the token strings that are special by name. Like the tokenizers library, it ignores empty ones.
func (c *config) specials() []string {
	var list []string
	for _, name := range slices.Concat(namedTokens, c.others) {
		if text := c.named[name]; text != "" {
			list = append(list, text)
		}
	}
	return append(list, c.extra...)
}

func readConfig(files map[string][]byte) (*config, error) {
	c := &config{named: map[string]string{}, known: map[string]bool{}}
	o, err := readObject(files, fileConfig)
	if err == nil {
		err = withLocation(fileConfig, errors.Join(c.readNames(o), c.readAddedDecoder(o)))
	}
	if _, current := o.Get("added_tokens_decoder"); err == nil && !current {
		err = c.readLegacy(files)
	}
	if err != nil {
		return nil, err
	}
	if o, err = readObject(files, fileGeneration); err != nil {
		return nil, err
	}
	return c, withLocation(fileGeneration, c.readStop(o))
}

// readLegacy reads the files of older releases of transformers. Names in them replace names in tokenizer_config.json. Like
// transformers, readConfig calls it only without added_tokens_decoder.
func (c *config) readLegacy(files map[string][]byte) error {
	o, err := readObject(files, fileSpecial)
	if err == nil {
		err = withLocation(fileSpecial, c.readNames(o))
	}
	if err != nil {
		return err
	}
	if o, err = readObject(files, fileAdded); err != nil {
		return err
	}
	if o.Len() > maxAdded {
		return fmt.Errorf("%s: more than %d entries", fileAdded, maxAdded)
	}
	special := map[string]bool{}
	for _, text := range c.specials() {
		special[text] = true
	}
	for text, v := range o.All() {
		ids, err := tokenIDs([]any{v})
		if err == nil {
			_, err = tokenText(text)
		}
		if err != nil {
			return withLocation(fileAdded, withLocation(text, err))
		}
		c.legacy = append(c.legacy, addedToken{id: ids[0], content: text, normalized: !special[text], special: special[text]})
	}
	sort.Slice(c.legacy, func(i, j int) bool { return c.legacy[i].id < c.legacy[j].id })
	return nil
}

func readObject(files map[string][]byte, name string) (*ordered.Object, error) {
	data, ok := files[name]
	if !ok {
		return nil, nil
	}
	v, err := ordered.Parse(data)
	if err != nil {
		return nil, withLocation(name, err)
	}
	o, ok := v.(*ordered.Object)
	if !ok {
		return nil, fmt.Errorf("%s: want an object, have %s", name, ordered.TypeName(v))
	}
	return o, nil
}

func (c *config) readNames(o *ordered.Object) error {
	for _, name := range namedTokens {
		v, ok := o.Get(name)
		switch {
		case !ok:
			continue
		case v == nil:
			delete(c.named, name)
			continue
		}
		text, err := tokenText(v)
		if err != nil {
			return withLocation(name, err)
		}
		c.named[name] = text
	}
	if err := c.readOtherNames(o); err != nil {
		return err
	}
	for _, key := range []string{"additional_special_tokens", "extra_special_tokens"} {
		list, _ := ordered.Value[[]any](o, key)
		if len(list) > maxAdded {
			return fmt.Errorf("%s: more than %d entries", key, maxAdded)
		}
		for _, v := range list {
			text, err := tokenText(v)
			if err != nil {
				return withLocation(key, err)
			}
			if !c.known[text] {
				c.known[text] = true
				c.extra = append(c.extra, text)
			}
		}
	}
	return nil
}

// readOtherNames reads the tokens of a model under names of its own: keys that end in _token, and the keys of an object
// extra_special_tokens, which has priority. It ignores values of other types.
func (c *config) readOtherNames(o *ordered.Object) error {
	named, _ := ordered.Value[*ordered.Object](o, "extra_special_tokens")
	for _, from := range []*ordered.Object{o, named} {
		for name, v := range from.All() {
			if from == o && (slices.Contains(namedTokens, name) || !strings.HasSuffix(name, "_token")) {
				continue
			}
			text, err := tokenText(v)
			if err != nil {
				continue
			}
			if _, again := c.named[name]; !again {
				c.others = append(c.others, name)
			}
			if c.named[name] = text; len(c.others) > maxAdded {
				return fmt.Errorf("more than %d names of tokens", maxAdded)
			}
		}
	}
	return nil
}

// tokenText reads a token, "<s>" or {"content": "<s>", …}.
func tokenText(v any) (string, error) {
	if o, ok := v.(*ordered.Object); ok {
		v, _ = o.Get("content")
	}
	s, ok := v.(string)
	if !ok || len(s) > format.MaxTokenText {
		return "", fmt.Errorf("want a token, have %s", ordered.TypeName(v))
	}
	return s, nil
}

func (c *config) readAddedDecoder(o *ordered.Object) error {
	decoder, _ := ordered.Value[*ordered.Object](o, "added_tokens_decoder")
	if decoder.Len() > maxAdded {
		return fmt.Errorf("added_tokens_decoder: more than %d entries", maxAdded)
	}
	for key, v := range decoder.All() {
		t, err := parseAdded(v)
		if err != nil {
			return withLocation("added_tokens_decoder: "+key, err)
		}
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil || id < 0 || id >= format.MaxID {
			return fmt.Errorf("added_tokens_decoder: %.20q is not an id", key)
		}
		t.id = int32(id)
		c.added = append(c.added, t)
	}
	sort.Slice(c.added, func(i, j int) bool { return c.added[i].id < c.added[j].id })
	return nil
}

// readStop reads the ids that end a turn. The id -1 stands for no token.
func (c *config) readStop(o *ordered.Object) error {
	v, _ := o.Get("eos_token_id")
	list, isList := v.([]any)
	if !isList && v != nil {
		list = []any{v}
	}
	list = slices.DeleteFunc(slices.Clone(list), func(id any) bool { return id == int64(NoID) })
	var err error
	c.stop, err = tokenIDs(list)
	return withLocation("eos_token_id", err)
}
