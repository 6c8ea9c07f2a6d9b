package jsonl

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"unicode/utf8"
)

const (
	maxLine = 1 << 20 // bytes of one row
	maxRows = 10_000_000

	maxChoices = 26
)

// Fields name what a row's fields hold.
type Fields struct {
	ID       string // row id; a row without it is named by its line number; "": all are
	Question string
	Answer   string
	Choices  string // list of options; may be absent from a row; "": from all
}

// DefaultFields are id, question, answer and choices.
func DefaultFields() Fields {
	return Fields{ID: "id", Question: "question", Answer: "answer", Choices: "choices"}
}

// Row is one question.
type Row struct {
	ID       string // of the row in its file; the line "row-000123" where it has none of its own
	Question string
	Answer   string
	Choices  []string
}

// ReadRows reads a file of one JSON object a line. Blank lines are skipped but counted. An error names
// the file and the line.
func ReadRows(path string, fields Fields) ([]Row, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("jsonl: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, maxLine)
	var rows []Row
	seen := map[string]int{}
	n := 0
	for lines.Scan() {
		n++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		row, err := parseRow(lines.Bytes(), n, fields)
		if err != nil {
			return nil, fmt.Errorf("jsonl: %s:%d: %w", path, n, err)
		}
		if first, taken := seen[row.ID]; taken {
			return nil, fmt.Errorf("jsonl: %s:%d: id %q is that of line %d too", path, n, row.ID, first)
		}
		if len(rows) == maxRows {
			return nil, fmt.Errorf("jsonl: %s:%d: more than %d rows", path, n, maxRows)
		}
		seen[row.ID] = n
		rows = append(rows, row)
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("a row of more than %d bytes", maxLine)
		}
		return nil, fmt.Errorf("jsonl: %s:%d: %w", path, n+1, err)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("jsonl: %s: no rows", path)
	}
	return rows, nil
}

func parseRow(line []byte, n int, fields Fields) (Row, error) {
	var object map[string]json.RawMessage
	if !utf8.Valid(line) {
		return Row{}, errors.New("not UTF-8")
	}
	if err := json.Unmarshal(line, &object); err != nil || object == nil {
		return Row{}, fmt.Errorf("not a JSON object: %v", err)
	}
	row := Row{ID: fmt.Sprintf("row-%06d", n)}
	for _, f := range []struct {
		name string
		into *string
	}{{fields.Question, &row.Question}, {fields.Answer, &row.Answer}} {
		raw, ok := object[f.name]
		if !ok {
			return Row{}, fmt.Errorf("no field %q", f.name)
		}
		if err := scalar(raw, f.into); err != nil {
			return Row{}, fmt.Errorf("field %q: %w", f.name, err)
		}
	}
	if row.Question == "" {
		return Row{}, fmt.Errorf("field %q: empty", fields.Question)
	}
	if raw, ok := object[fields.Choices]; ok && fields.Choices != "" {
		if err := json.Unmarshal(raw, &row.Choices); err != nil {
			return Row{}, fmt.Errorf("field %q: must be a list of texts: %w", fields.Choices, err)
		}
		if len(row.Choices) > maxChoices {
			return Row{}, fmt.Errorf("field %q: %d choices, at most %d have a letter", fields.Choices, len(row.Choices), maxChoices)
		}
	}
	if raw, ok := object[fields.ID]; ok && fields.ID != "" {
		if err := scalar(raw, &row.ID); err != nil {
			return Row{}, fmt.Errorf("field %q: %w", fields.ID, err)
		}
		if !validID.MatchString(row.ID) {
			return Row{}, fmt.Errorf("field %q: %.80q: an id has 1 to 128 letters, digits or . _ : -", fields.ID, row.ID)
		}
	}
	return row, nil
}

// validID leaves out what query and trajectory ids use as separators.
var validID = regexp.MustCompile(`^[\p{L}\p{N}._:-]{1,128}$`)

// scalar reads a text, or a number or truth value as it is written.
func scalar(raw json.RawMessage, into *string) error {
	switch raw[0] {
	case '"':
		return json.Unmarshal(raw, into)
	case '{', '[', 'n':
		return errors.New("must be a text or a number")
	}
	*into = string(raw)
	return nil
}
