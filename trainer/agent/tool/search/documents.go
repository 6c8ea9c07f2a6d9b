package search

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

const (
	maxDocument    = 16 << 20 // bytes of a JSONL line or a Markdown file
	passageBytes   = 800      // target size; shorter paragraphs are not split
	passageMaximum = 1600
)

var errNotUTF8 = errors.New("not UTF-8 text: save the file as UTF-8")

// document is one entry of a corpus.
type document struct {
	id    string // line number or path within the corpus
	title string
	text  string
}

// corpusFiles lists the files of a corpus: one JSONL file, or all Markdown files below a folder, sorted by name. The folder and the files
// may be links, as in a snapshot of Hugging Face's cache. Links to folders within the folder are not followed.
func corpusFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	var files []string
	err = filepath.WalkDir(path+string(filepath.Separator), func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !slices.Contains([]string{".md", ".markdown"}, strings.ToLower(filepath.Ext(file))) {
			return err
		}
		info, err := os.Stat(file)
		if err == nil && info.Mode().IsRegular() {
			files = append(files, file)
		}
		return err
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s: this folder has no Markdown file (.md)", path)
	}
	return files, err
}

// readCorpus calls visit for every document of a corpus. A corpus without any text is an error.
func readCorpus(path string, visit func(document) error) error {
	files, err := corpusFiles(path)
	if err != nil {
		return err
	}
	empty, visitAny := true, visit
	visit = func(d document) error {
		empty = empty && strings.TrimSpace(d.text) == ""
		return visitAny(d)
	}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		if file == path {
			err = readJSONL(f, visit)
		} else {
			id, relErr := filepath.Rel(path, file)
			if relErr != nil {
				id = file
			}
			err = readMarkdown(f, id, visit)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	if empty {
		return errors.New("it has no text")
	}
	return nil
}

func readJSONL(r io.Reader, visit func(document) error) error {
	lines := bufio.NewScanner(texts.NewReader(r))
	lines.Buffer(make([]byte, 64<<10), maxDocument)
	number := 0
	for lines.Scan() {
		number++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if !utf8.Valid(lines.Bytes()) {
			return fmt.Errorf("line %d: %w", number, errNotUTF8)
		}
		var entry struct {
			Title string  `json:"title"`
			Text  *string `json:"text"`
		}
		const want = `a corpus has lines {"title": "…", "text": "…"}`
		if err := json.Unmarshal(lines.Bytes(), &entry); err != nil {
			return fmt.Errorf("line %d: %w; %s", number, err, want)
		}
		if entry.Text == nil {
			return fmt.Errorf(`line %d: no "text"; %s`, number, want)
		}
		if err := visit(document{fmt.Sprint(number), entry.Title, *entry.Text}); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("line %d: %w (at most %d bytes a line)", number+1, err, maxDocument)
	}
	return nil
}

// readMarkdown reads a file as one document. The title is the first heading, or the file's name if there is no heading.
func readMarkdown(r io.Reader, id string, visit func(document) error) error {
	content, err := io.ReadAll(io.LimitReader(texts.NewReader(r), maxDocument+1))
	if err != nil {
		return err
	}
	if len(content) > maxDocument {
		return fmt.Errorf("more than %d bytes", maxDocument)
	}
	if !utf8.Valid(content) {
		return errNotUTF8
	}
	d := document{id: id, title: strings.TrimSuffix(filepath.Base(id), filepath.Ext(id)), text: string(content)}
	for line := range strings.Lines(d.text) {
		if heading, ok := strings.CutPrefix(strings.TrimSpace(line), "#"); ok {
			d.title = strings.TrimSpace(strings.TrimLeft(heading, "#"))
			break
		}
	}
	return visit(d)
}

// passages splits a text at paragraphs into passages of about passageBytes and at most passageMaximum bytes.
func passages(text string) []string {
	var out []string
	var current strings.Builder
	flush := func() {
		if s := strings.TrimSpace(current.String()); s != "" {
			out = append(out, s)
		}
		current.Reset()
	}
	for paragraph := range strings.SplitSeq(strings.ReplaceAll(text, "\r\n", "\n"), "\n\n") {
		if current.Len() > 0 && current.Len()+len(paragraph) > passageBytes {
			flush()
		}
		for len(paragraph) > passageMaximum {
			cut := strings.LastIndexAny(paragraph[:passageMaximum], " \n")
			if cut <= 0 {
				for cut = passageMaximum; !utf8.RuneStart(paragraph[cut]); cut-- {
				}
			}
			current.WriteString(paragraph[:cut])
			flush()
			paragraph = paragraph[cut:]
		}
		current.WriteString(paragraph + "\n\n")
	}
	flush()
	return out
}
