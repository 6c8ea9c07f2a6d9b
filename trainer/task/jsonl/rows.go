package jsonl

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/task"
)

const (
	maxLine = 1 << 20 // bytes of one row
	maxRows = 10_000_000

	maxID       = 128 // characters
	maxChoices  = 26
	maxAccepted = 1000
	maxParts    = 256
)

// Fields are the names of the fields that the task reads from a row. A name may be a path into a column, such as
// reward_model.ground_truth or answers.0.text. A column with exactly this name takes precedence. The fields are those
// of config.Fields, in the same order.
type Fields struct {
	ID       string // row id; a row without this field uses its number; "": every row uses its number
	Question string // a text, or messages: one user message, optionally after a system message
	Answer   string // a text, or a list of accepted texts
	Choices  string // list of options, or their texts and labels; a row may lack this field; "": no row has it
	Kind     string // kind of question; a row may lack this field; "": no row has it
	Level    string // difficulty; a row may lack this field; "": no row has it
	Parts    string // list of sub-questions; a row may lack this field; "": no row has it
}

// DefaultFields returns the names id, question, answer, choices, kind, level and parts.
func DefaultFields() Fields {
	return Fields{ID: "id", Question: "question", Answer: "answer", Choices: "choices", Kind: "kind", Level: "level", Parts: "parts"}
}

// Row is one question.
type Row struct {
	ID       string // id of the row in its file; "row-000123", from the row's number, if the row has no id
	Question string
	Answer   string   // the first accepted answer
	Accepted []string // all accepted answers if the row has a list, otherwise nil
	Choices  []string
	labels   []string // of Choices; nil: letters
	numbers  bool     // the answers are JSON numbers
	Parts    []task.SubQuestion
	Kind     string
	Level    string
	Columns  json.RawMessage // the whole row, a JSON object
}

// ReadRows reads a file of rows in any format of EachRow. Errors name the file and the number of the row.
func ReadRows(path string, fields Fields) ([]Row, error) { return readRows(path, fields, nil) }

// readRows reads a file. reshape converts its rows into objects with the given fields; nil means that they already are
// such objects.
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

// object is a row: its values by field name.
type object = map[string]json.RawMessage

// add parses the JSON object of row n, counted from 1.
func (t *table) add(n int, text []byte) error {
	row, err := t.parse(text, n)
	if err != nil {
		return err
	}
	if first, taken := t.seen[row.ID]; taken {
		return fmt.Errorf("id %q is also the id of row %d: ids must be unique (rows without an id have their number)", row.ID, first)
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
	question, err := required(object, "question", fields.Question)
	if err != nil {
		return Row{}, err
	}
	answer, err := required(object, "answer", fields.Answer)
	if err != nil {
		return Row{}, err
	}
	if row.Question, err = questionOf(question); err == nil && row.Question == "" {
		err = errors.New("empty")
	}
	if err != nil {
		return Row{}, fmt.Errorf("field %q: %w", fields.Question, err)
	}
	if question[0] == '[' || isMessages(List(question)) {
		if err := refuseMedia(object); err != nil {
			return Row{}, err
		}
	}
	if row.Answer, row.Accepted, err = readAnswer(answer); err != nil {
		return Row{}, fmt.Errorf("field %q: %w", fields.Answer, err)
	}
	row.numbers = isNumber(answer)
	return row, row.readOptional(object, fields)
}

// isNumber reports whether an answer, or the first answer in a list, is a JSON number.
func isNumber(answer json.RawMessage) bool {
	first := bytes.TrimLeft(answer, "[ ")
	return len(first) > 0 && (first[0] == '-' || first[0] >= '0' && first[0] <= '9')
}

// readOptional reads the fields that a row may lack.
func (r *Row) readOptional(object object, fields Fields) error {
	for _, f := range []struct {
		name string
		read func(json.RawMessage) error
	}{
		{fields.Choices, listed(r.readChoices)},
		{fields.Parts, listed(func(raw json.RawMessage) (err error) {
			r.Parts, err = readParts(raw)
			return err
		})},
		{fields.Kind, func(raw json.RawMessage) error { return scalarOrNull(raw, &r.Kind) }},
		{fields.Level, func(raw json.RawMessage) error { return scalarOrNull(raw, &r.Level) }},
		{fields.ID, r.readID},
	} {
		raw, err := optional(object, f.name)
		if err == nil && raw != nil {
			err = withField(f.name, f.read(raw))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// listed returns a reader of a list that may be stored as a JSON text, as in .csv. An empty text is no list.
func listed(read func(json.RawMessage) error) func(json.RawMessage) error {
	return func(raw json.RawMessage) error {
		if string(raw) == `""` {
			return nil
		}
		return read(List(raw))
	}
}

// readChoices reads a list of texts, {"text": list, "label": list} as ARC has it, {"A": text, "B": text} as MedQA has it, or a list of
// {"label": ..., "text": ...} or {"key": ..., "value": ...}.
func (r *Row) readChoices(raw json.RawMessage) error {
	var err error
	if raw[0] == '{' {
		err = r.readLabelled(raw)
	} else if r.labels, r.Choices, err = labelledList(raw); r.labels == nil {
		err = json.Unmarshal(raw, &r.Choices)
	}
	if err != nil {
		return fmt.Errorf("must be a list of texts: %w", err)
	}
	if len(r.Choices) > maxChoices {
		return fmt.Errorf("%d choices, but only %d letters are available", len(r.Choices), maxChoices)
	}
	return nil
}

// labelledList reads a list of objects, each with a label and a text. labels is nil for any other list.
func labelledList(raw json.RawMessage) (labels, options []string, err error) {
	var list []map[string]string
	if json.Unmarshal(raw, &list) != nil {
		return nil, nil, nil
	}
	for i, o := range list {
		label, text := cmp.Or(o["label"], o["key"]), cmp.Or(o["text"], o["value"])
		if label == "" || text == "" {
			return []string{}, nil, fmt.Errorf(`option %d has no "label" (or "key") or no "text" (or "value")`, i+1)
		}
		labels, options = append(labels, label), append(options, text)
	}
	return labels, options, nil
}

// readLabelled reads an object of texts and labels, or of a text for each label. A label whose value is null has no option.
func (r *Row) readLabelled(raw json.RawMessage) error {
	var lists struct{ Text, Label []string }
	var byLabel map[string]*string
	if json.Unmarshal(raw, &lists) != nil || lists.Text == nil {
		lists.Text, lists.Label = nil, nil
		if err := json.Unmarshal(raw, &byLabel); err != nil {
			return err
		}
	}
	for _, label := range slices.Sorted(maps.Keys(byLabel)) {
		if text := byLabel[label]; text != nil {
			lists.Text, lists.Label = append(lists.Text, *text), append(lists.Label, label)
		}
	}
	if len(lists.Text) != len(lists.Label) {
		return fmt.Errorf("%d texts, but %d labels", len(lists.Text), len(lists.Label))
	}
	r.Choices, r.labels = lists.Text, lists.Label
	return nil
}

// nameOptions replaces answers that are the label of an option, or its number counted from 0 as in MMLU, by the option's letter. If another
// option has this letter as its text, they become the option's text. The number may be a text, as in HellaSwag, if the options have no
// labels and none of them is this number. An answer that is the label of two options is an error.
func (r *Row) nameOptions() error {
	if len(r.Choices) == 0 {
		return nil
	}
	answers := []string{r.Answer}
	if r.Accepted != nil {
		answers = slices.Clone(r.Accepted)
	}
	for i, a := range answers {
		option := slices.Index(r.labels, a)
		if !r.numbers && r.labels == nil {
			option = r.indexed(a)
		}
		if n, err := strconv.Atoi(a); option < 0 && r.numbers && err == nil {
			if option = n; n < 0 || n >= len(r.Choices) {
				if slices.Contains(r.Choices, a) {
					continue
				}
				return fmt.Errorf("%d is not the number of one of %d choices, counted from 0", n, len(r.Choices))
			}
		}
		if option < 0 {
			continue
		}
		if option < len(r.labels) && r.labels[option] == a && slices.Contains(r.labels[option+1:], a) {
			return fmt.Errorf("two options have the label %q, which is the answer", a)
		}
		answers[i] = string(rune('A' + option))
		for other, text := range r.Choices {
			if other != option && strings.EqualFold(strings.TrimSpace(text), string(rune('A'+option))) {
				answers[i] = r.Choices[option]
			}
		}
	}
	if r.Answer = answers[0]; r.Accepted != nil {
		r.Accepted = answers
	}
	return nil
}

// indexed returns the index of the option whose number, counted from 0, is the text of an answer. It returns -1 if there is none or if an
// option is the same number.
func (r *Row) indexed(answer string) int {
	n, err := strconv.ParseUint(answer, 10, 31)
	if err != nil || n >= uint64(len(r.Choices)) || slices.ContainsFunc(r.Choices, func(choice string) bool {
		v, err := strconv.ParseFloat(strings.TrimSpace(choice), 64)
		return err == nil && v == float64(n)
	}) {
		return -1
	}
	return int(n)
}

// readID reads an id. A row whose id is null keeps its number. Characters that an id must not have become %XX, the number of each byte,
// as in an address: test/7.json becomes test%2F7.json.
func (r *Row) readID(raw json.RawMessage) error {
	var id string
	if err := scalarOrNull(raw, &id); err != nil || string(raw) == "null" {
		return err
	}
	r.ID = notInIDs.ReplaceAllStringFunc(id, func(c string) string {
		return "%" + strings.ReplaceAll(fmt.Sprintf("% X", c), " ", "%")
	})
	if n := utf8.RuneCountInString(r.ID); n < 1 || n > maxID {
		return fmt.Errorf("%.80q: an id must have 1 to %d characters, where each byte of a character other than letters, digits and . _ : - counts as 3",
			id, maxID)
	}
	return nil
}

func scalarOrNull(raw json.RawMessage, into *string) error {
	if string(raw) == "null" {
		return nil
	}
	return scalar(raw, into)
}

// list returns the names of a row's fields for an error, shortened if there are many.
func list(object map[string]json.RawMessage) string {
	names := slices.Sorted(maps.Keys(object))
	if len(names) == 0 {
		return "none"
	}
	const maxNames = 20
	more := ""
	if len(names) > maxNames {
		names, more = names[:maxNames], fmt.Sprintf(" and %d more", len(names)-maxNames)
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("%.40q", name)
	}
	return strings.Join(names, ", ") + more
}

// readAnswer reads the accepted answer, or a list of accepted answers. The first answer of a list is returned as
// answer.
func readAnswer(raw json.RawMessage) (answer string, accepted []string, err error) {
	if raw[0] != '[' {
		answer, err = readOne(raw)
		return answer, nil, err
	}
	var answers []json.RawMessage
	if err := json.Unmarshal(raw, &answers); err != nil {
		return "", nil, err
	}
	if len(answers) == 0 || len(answers) > maxAccepted {
		return "", nil, fmt.Errorf("a list of %d answers; it must have 1 to %d", len(answers), maxAccepted)
	}
	accepted = make([]string, len(answers))
	for i, a := range answers {
		if accepted[i], err = readOne(a); err != nil {
			return "", nil, fmt.Errorf("answer %d of the list: %w", i+1, err)
		}
	}
	return accepted[0], accepted, nil
}

// readOne reads one answer and removes the thinking that a reasoning model wrote before it.
func readOne(raw json.RawMessage) (answer string, err error) {
	var text string
	if err := scalar(raw, &text); err != nil {
		return "", err
	}
	answer = agent.WithoutThinking(text)
	switch {
	case answer == text:
		return text, nil
	case strings.TrimSpace(answer) == "":
		return "", errors.New("it contains only thinking, without an answer after it")
	}
	return strings.TrimSpace(answer), nil
}

// notInIDs are the bytes that an id must not have, such as the separators of query and trajectory ids.
var notInIDs = regexp.MustCompile(`[^\p{L}\p{N}._:-]`)

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

func tooManyParts(n int) error { return fmt.Errorf("%d parts; at most %d are read", n, maxParts) }

// readParts reads a list of sub-questions, each {"question", "answer"}. An answer is a text, or a list of accepted
// texts. Other fields of a part, such as the document with its answer, stay in the row's columns.
func readParts(raw json.RawMessage) ([]task.SubQuestion, error) {
	var list []struct {
		Question *string         `json:"question"`
		Answer   json.RawMessage `json:"answer"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf(`must be a list of {"question": ..., "answer": ...}: %w`, err)
	}
	if len(list) > maxParts {
		return nil, tooManyParts(len(list))
	}
	parts := make([]task.SubQuestion, len(list))
	for i, p := range list {
		if p.Question == nil || *p.Question == "" {
			return nil, fmt.Errorf("part %d has no question", i+1)
		}
		if len(p.Answer) == 0 {
			return nil, fmt.Errorf("part %d has no answer", i+1)
		}
		answer, accepted, err := readAnswer(p.Answer)
		if err != nil {
			return nil, fmt.Errorf("part %d: answer: %w", i+1, err)
		}
		parts[i] = task.SubQuestion{Question: *p.Question, Answer: answer, Accepted: accepted}
	}
	return parts, nil
}

// part is a sub-question in the form of a row.
type part struct {
	Question string          `json:"question"`
	Answer   json.RawMessage `json:"answer"`
}

func setParts(row object, parts []part) (err error) {
	row["parts"], err = json.Marshal(parts)
	return err
}
