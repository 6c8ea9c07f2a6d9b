package jsonl

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/task"
)

const (
	maxLine = 1 << 20 // bytes of one row
	maxRows = 10_000_000

	maxChoices  = 26
	maxAccepted = 1000
)

// Fields are the names of the fields that the task reads from a row.
type Fields struct {
	ID       string // row id; a row without this field is named by its number; "": every row is named by its number
	Question string
	Answer   string // a text, or a list of texts of which any is right
	Choices  string // list of options; a row may lack this field; "": no row has it
	Parts    string // list of sub-questions; a row may lack this field; "": no row has it
	Kind     string // what kind of question it is; a row may lack this field; "": no row has it
	Level    string // how hard it is; a row may lack this field; "": no row has it
}

// DefaultFields are id, question, answer, choices, parts, kind and level.
func DefaultFields() Fields {
	return Fields{ID: "id", Question: "question", Answer: "answer", Choices: "choices", Parts: "parts", Kind: "kind", Level: "level"}
}

// Row is one question.
type Row struct {
	ID       string // id of the row in its file; "row-000123", from the row's number, if the row has no id
	Question string
	Answer   string   // the first accepted answer
	Accepted []string // all accepted answers if the row has a list, else nil
	Choices  []string
	Parts    []task.SubQuestion
	Kind     string
	Level    string
	Columns  json.RawMessage // the whole row, a JSON object
}

// ReadRows reads a file of rows in any format of EachRow. Errors name the file and the number of the row.
func ReadRows(path string, fields Fields) ([]Row, error) { return readRows(path, fields, nil) }

// readRows reads a file whose rows reshape turns into objects with the given fields; nil: they are such objects.
func readRows(path string, fields Fields, reshape func(object) (object, error)) ([]Row, error) {
	t := table{fields: fields, reshape: reshape, seen: map[string]int{}}
	if err := EachRow(path, maxLine, t.add); err != nil {
		return nil, fmt.Errorf("jsonl: %w", err)
	}
	if len(t.rows) == 0 {
		return nil, fmt.Errorf("jsonl: %s: no rows", path)
	}
	return t.rows, nil
}

// table collects the rows of a file.
type table struct {
	fields  Fields
	reshape func(object) (object, error)
	rows    []Row
	seen    map[string]int // row number by id
}

// object is a row: its values by the names of its fields.
type object = map[string]json.RawMessage

// add parses the JSON object of row n, counted from 1.
func (t *table) add(n int, text []byte) error {
	row, err := t.parse(text, n)
	if err != nil {
		return err
	}
	if first, taken := t.seen[row.ID]; taken {
		return fmt.Errorf("id %q is also the id of row %d: ids must be unique", row.ID, first)
	}
	if len(t.rows) == maxRows {
		return fmt.Errorf("more than %d rows", maxRows)
	}
	t.seen[row.ID] = n
	t.rows = append(t.rows, row)
	return nil
}

var errTooLong = tooLong(maxLine)

func (t *table) parse(text []byte, n int) (Row, error) {
	var o object
	if err := json.Unmarshal(text, &o); err != nil || o == nil {
		return Row{}, fmt.Errorf("not a JSON object: %v", err)
	}
	if t.reshape != nil {
		var err error
		if o, err = t.reshape(o); err != nil {
			return Row{}, err
		}
	}
	row, err := parseRow(o, n, t.fields)
	row.Columns = bytes.Clone(bytes.TrimSpace(text))
	return row, err
}

// parseRow reads row n, counted from 1.
func parseRow(object object, n int, fields Fields) (Row, error) {
	row := Row{ID: fmt.Sprintf("row-%06d", n)}
	for _, f := range []struct{ key, name string }{{"question", fields.Question}, {"answer", fields.Answer}} {
		if _, ok := object[f.name]; !ok {
			return Row{}, fmt.Errorf("no field %q: the row has %s; name the right one in task.fields.%s", f.name, list(object), f.key)
		}
	}
	if err := scalar(object[fields.Question], &row.Question); err != nil {
		return Row{}, fmt.Errorf("field %q: %w", fields.Question, err)
	}
	if row.Question == "" {
		return Row{}, fmt.Errorf("field %q: empty", fields.Question)
	}
	var err error
	if row.Answer, row.Accepted, err = readAnswer(object[fields.Answer]); err != nil {
		return Row{}, fmt.Errorf("field %q: %w", fields.Answer, err)
	}
	if raw, ok := object[fields.Choices]; ok && fields.Choices != "" {
		if err := json.Unmarshal(raw, &row.Choices); err != nil {
			return Row{}, fmt.Errorf("field %q: must be a list of texts: %w", fields.Choices, err)
		}
		if len(row.Choices) > maxChoices {
			return Row{}, fmt.Errorf("field %q: %d choices, at most %d have a letter", fields.Choices, len(row.Choices), maxChoices)
		}
	}
	if raw, ok := object[fields.Parts]; ok && fields.Parts != "" {
		if row.Parts, err = readParts(raw); err != nil {
			return Row{}, fmt.Errorf("field %q: %w", fields.Parts, err)
		}
	}
	for name, into := range map[string]*string{fields.Kind: &row.Kind, fields.Level: &row.Level} {
		if raw, ok := object[name]; ok && name != "" && string(raw) != "null" {
			if err := scalar(raw, into); err != nil {
				return Row{}, fmt.Errorf("field %q: %w", name, err)
			}
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

// list returns the names of a row's fields for an error, shortened if there are many.
func list(object map[string]json.RawMessage) string {
	names := slices.Sorted(maps.Keys(object))
	if len(names) == 0 {
		return "none"
	}
	const most = 20
	more := ""
	if len(names) > most {
		names, more = names[:most], fmt.Sprintf(" and %d more", len(names)-most)
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("%.40q", name)
	}
	return strings.Join(names, ", ") + more
}

// readAnswer reads the accepted answer, or a list of accepted answers, of which the first stands for all.
func readAnswer(raw json.RawMessage) (answer string, accepted []string, err error) {
	if raw[0] != '[' {
		err = scalar(raw, &answer)
		return answer, nil, err
	}
	var answers []json.RawMessage
	if err := json.Unmarshal(raw, &answers); err != nil {
		return "", nil, err
	}
	if len(answers) == 0 || len(answers) > maxAccepted {
		return "", nil, fmt.Errorf("a list of %d answers; want 1 to %d", len(answers), maxAccepted)
	}
	accepted = make([]string, len(answers))
	for i, a := range answers {
		if err := scalar(a, &accepted[i]); err != nil {
			return "", nil, fmt.Errorf("answer %d of the list: %w", i+1, err)
		}
	}
	return accepted[0], accepted, nil
}

// validID excludes the separators of query and trajectory ids.
var validID = regexp.MustCompile(`^[\p{L}\p{N}._:-]{1,128}$`)

// scalar reads a text, or the JSON text of a number or boolean.
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
