package jsonl

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// layouts are the forms in which benchmarks publish their questions. Each function converts a row into a row with
// DefaultFields.
var layouts = map[string]func(object) (object, error){
	"hotpotqa":    renamed(map[string][]string{"id": {"_id", "id"}, "kind": {"type"}, "level": {"level"}}),
	"2wiki":       renamed(map[string][]string{"id": {"_id", "id"}, "kind": {"type"}}),
	"musique":     musique,
	"frames":      renamed(map[string][]string{"id": {"Unnamed: 0", "", "id"}, "question": {"Prompt"}, "answer": {"Answer"}, "kind": {"reasoning_types"}}),
	"fanoutqa":    fanOutQA,
	"webwalkerqa": webWalkerQA,
	"gaia":        gaia,
	"browsecomp":  browseComp,
	"verl":        verl,
	"sharegpt":    shareGPT,
}

// Layouts returns the names of the known layouts, sorted.
func Layouts() []string { return slices.Sorted(maps.Keys(layouts)) }

// renamed returns a layout whose rows have their fields under other names, which may be paths. For each field, the
// first name that exists is used. Question and answer keep their names if names does not contain them.
func renamed(names map[string][]string) func(object) (object, error) {
	return func(row object) (object, error) {
		out := object{}
		for _, key := range []string{"id", "question", "answer", "kind", "level"} {
			from, given := names[key]
			if !given && (key == "question" || key == "answer") {
				from = []string{key}
			}
			for _, name := range from {
				if raw, err := valueOf(row, name); err == nil {
					out[key] = raw
					break
				}
			}
			if out[key] == nil && (key == "question" || key == "answer") {
				_, err := valueOf(row, from[0])
				return nil, errNotOfLayout(from[0], err)
			}
		}
		return out, nil
	}
}

func errNotOfLayout(field string, err error) error {
	return fmt.Errorf("no field %q, which rows of this layout have: %w", field, err)
}

// quoted returns a text as JSON.
func quoted(text string) json.RawMessage {
	raw, _ := json.Marshal(text) // a text always marshals
	return raw
}

// part is a sub-question in the form of a row.
type part struct {
	Question string          `json:"question"`
	Answer   json.RawMessage `json:"answer"`
}

func withParts(row object, parts []part) (object, error) {
	raw, err := json.Marshal(parts)
	row["parts"] = raw
	return row, err
}

// musique reads MuSiQue's rows. Any of answer and answer_aliases is right. "#n" in a step of question_decomposition
// stands for the answer of step n. The kind is the id's first word, such as 3hop1.
func musique(row object) (object, error) {
	out, err := renamed(map[string][]string{"id": {"id"}})(row)
	if err != nil {
		return nil, err
	}
	var extra struct {
		ID         string   `json:"id"`
		Answer     string   `json:"answer"`
		Aliases    []string `json:"answer_aliases"`
		Answerable *bool    `json:"answerable"`
		Steps      []struct {
			Question string `json:"question"`
			Answer   string `json:"answer"`
		} `json:"question_decomposition"`
	}
	if err := reread(row, &extra); err != nil {
		return nil, err
	}
	if extra.Answerable != nil && !*extra.Answerable {
		return nil, errors.New("answerable is false: there is no answer to compare with; use the files of answerable questions, musique_ans_*")
	}
	accepted := []string{extra.Answer}
	for _, alias := range extra.Aliases {
		if !slices.Contains(accepted, alias) {
			accepted = append(accepted, alias)
		}
	}
	if out["answer"], err = json.Marshal(accepted); err != nil {
		return nil, err
	}
	if kind, _, ok := strings.Cut(extra.ID, "__"); ok {
		out["kind"] = quoted(kind)
	}
	if len(extra.Steps) > maxParts {
		return nil, fmt.Errorf("question_decomposition: %w", tooManyParts(len(extra.Steps)))
	}
	parts, answers := make([]part, len(extra.Steps)), []string(nil)
	room := maxLine
	for i, step := range extra.Steps {
		question, err := filledIn(step.Question, answers, &room)
		if err != nil {
			return nil, fmt.Errorf("question_decomposition: %w", err)
		}
		parts[i], answers = part{question, quoted(step.Answer)}, append(answers, step.Answer)
	}
	return withParts(out, parts)
}

var stepNumber = regexp.MustCompile(`#\d+`)

// filledIn replaces #n with the nth answer, and keeps #n if there is no such answer. It does not replace #n inside
// answers. It subtracts the bytes that it fills in from room, and returns an error if room is exhausted.
func filledIn(question string, answers []string, room *int) (string, error) {
	out := stepNumber.ReplaceAllStringFunc(question, func(name string) string {
		n, err := strconv.Atoi(name[1:])
		if err != nil || n < 1 || n > len(answers) || *room < 0 {
			return name
		}
		if *room -= len(answers[n-1]); *room < 0 {
			return name
		}
		return answers[n-1]
	})
	if *room < 0 {
		return "", errTooLong
	}
	return out, nil
}

// reread decodes some fields of a row.
func reread(row object, into any) error {
	raw, err := json.Marshal(row)
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		return fmt.Errorf("not of this layout: %w", err)
	}
	return nil
}

// step is a node of FanOutQA's decomposition.
type step struct {
	Question string          `json:"question"`
	Answer   json.RawMessage `json:"answer"`
	Steps    []step          `json:"decomposition"`
}

// fanOutQA reads FanOutQA's rows. The parts are the steps of the decomposition; a step comes after its own sub-steps.
// Answers that are lists or objects of texts and numbers become texts: "a, b" and "key: value, key: value".
func fanOutQA(row object) (object, error) {
	out, err := renamed(map[string][]string{"id": {"id"}})(row)
	if err != nil {
		return nil, err
	}
	var whole step
	if err := reread(row, &whole); err != nil {
		return nil, err
	}
	if out["answer"], err = asText(whole.Answer); err != nil {
		return nil, err
	}
	var parts []part
	var flatten func(steps []step) error
	flatten = func(steps []step) error {
		for _, s := range steps {
			if err := flatten(s.Steps); err != nil {
				return err
			}
			answer, err := asText(s.Answer)
			if err != nil {
				return fmt.Errorf("decomposition: %q: %w", s.Question, err)
			}
			parts = append(parts, part{s.Question, answer})
		}
		return nil
	}
	if err := flatten(whole.Steps); err != nil {
		return nil, err
	}
	return withParts(out, parts)
}

// asText converts a JSON value into a JSON text. True and false become yes and no, as in FanOutQA's own evaluation.
func asText(raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 {
		return nil, errors.New("no answer")
	}
	var pieces []string
	switch raw[0] {
	case '[':
		var list []json.RawMessage
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, err
		}
		for _, x := range list {
			piece, err := pieceOf(x)
			if err != nil {
				return nil, err
			}
			pieces = append(pieces, piece)
		}
	case '{':
		var fields object
		if err := json.Unmarshal(raw, &fields); err != nil {
			return nil, err
		}
		for _, key := range slices.Sorted(maps.Keys(fields)) {
			piece, err := pieceOf(fields[key])
			if err != nil {
				return nil, err
			}
			pieces = append(pieces, key+": "+piece)
		}
	default:
		piece, err := pieceOf(raw)
		return quoted(piece), err
	}
	return quoted(strings.Join(pieces, ", ")), nil
}

// pieceOf returns a text, a number or a boolean as a text.
func pieceOf(raw json.RawMessage) (text string, err error) {
	switch string(raw) {
	case "true":
		return "yes", nil
	case "false":
		return "no", nil
	}
	err = scalar(raw, &text)
	return text, err
}

// verl reads verl's rows. The question is prompt, a list of messages, the answer is reward_model.ground_truth, and the
// kind is data_source. If the ground truth is an object whose only key is target, target is the answer: data sets with
// several accepted answers store them there.
func verl(row object) (object, error) {
	if err := refuseMedia(row); err != nil {
		return nil, err
	}
	const truth = "reward_model.ground_truth"
	out, err := renamed(map[string][]string{"id": {"id"}, "question": {"prompt"}, "answer": {truth}, "kind": {"data_source"}})(row)
	if err != nil {
		return nil, err
	}
	if out["answer"][0] == '{' {
		var parts object
		if err := json.Unmarshal(out["answer"], &parts); err != nil {
			return nil, err
		}
		if parts["target"] == nil || len(parts) > 1 {
			return nil, fmt.Errorf("%s is an object with %s: name the part that is the answer, with task.layout: rows and task.fields.answer: %s.NAME", truth, list(parts), truth)
		}
		out["answer"] = parts["target"]
	}
	return out, nil
}

// shareGPT reads ShareGPT's rows. The first turn of conversations, or of messages in OpenAI's form, is the question,
// and the last is the answer.
func shareGPT(row object) (object, error) {
	name := "conversations"
	if !hasValue(row[name]) && row["messages"] != nil {
		name = "messages"
	}
	raw, err := valueOf(row, name)
	if err != nil {
		return nil, errNotOfLayout(name, err)
	}
	if err := refuseMedia(row); err != nil {
		return nil, err
	}
	messages, err := parseMessages(raw)
	if err != nil {
		return nil, wrapped(name, err)
	}
	if system := row["system"]; hasValue(system) {
		var first message
		if first.role = "system"; messages[0].role == first.role {
			return nil, fmt.Errorf("two system messages: the field %q, and the first of %s; keep one", "system", name)
		}
		if err := scalar(system, &first.text); err != nil {
			return nil, wrapped("system", err)
		}
		messages = slices.Insert(messages, 0, first)
	}
	question, answer, err := conversationOf(messages)
	if err != nil {
		return nil, wrapped(name, err)
	}
	out := object{"question": quoted(question), "answer": quoted(answer)}
	if id := row["id"]; id != nil {
		out["id"] = id
	}
	return out, nil
}

// webWalkerQA reads WebWalkerQA's rows. kind and level are info.hop and info.difficulty_level.
func webWalkerQA(row object) (object, error) {
	out, err := renamed(map[string][]string{"id": {"id"}})(row)
	if err != nil {
		return nil, err
	}
	var extra struct {
		Info struct {
			Hop   string `json:"hop"`
			Level string `json:"difficulty_level"`
		} `json:"info"`
	}
	if err := reread(row, &extra); err != nil {
		return nil, err
	}
	out["kind"], out["level"] = quoted(extra.Info.Hop), quoted(extra.Info.Level)
	return out, nil
}

// gaia reads GAIA's rows. The question names an attachment, but the agents cannot open it. Answers of the test split
// are not published.
func gaia(row object) (object, error) {
	out, err := renamed(map[string][]string{"id": {"task_id"}, "question": {"Question"}, "answer": {"Final answer"}, "level": {"Level"}})(row)
	if err != nil {
		return nil, err
	}
	var question, answer, file string
	if err := errors.Join(scalar(out["question"], &question), scalar(out["answer"], &answer)); err != nil {
		return nil, err
	}
	if answer == "?" {
		return nil, errors.New(`the answer is "?": the answers of this split are not published; use the validation split`)
	}
	if raw, ok := row["file_name"]; ok && string(raw) != "null" {
		if err := scalar(raw, &file); err != nil {
			return nil, fmt.Errorf(`field "file_name": %w`, err)
		}
	}
	if file != "" {
		out["question"] = quoted(question + "\n(The file " + file + " belongs to this question. It cannot be opened here.)")
	}
	return out, nil
}

// browseComp reads BrowseComp's rows. Problem and answer are encrypted with the row's canary, so that they cannot be
// found by a search. Rows without a canary are used as they are.
func browseComp(row object) (object, error) {
	out, err := renamed(map[string][]string{"id": {"id"}, "question": {"problem"}, "answer": {"answer"}, "kind": {"problem_topic"}})(row)
	if err != nil {
		return nil, err
	}
	raw, encrypted := row["canary"]
	if !encrypted {
		return out, nil
	}
	var canary string
	if err := scalar(raw, &canary); err != nil {
		return nil, fmt.Errorf(`field "canary": %w`, err)
	}
	for _, key := range []string{"question", "answer"} {
		var text string
		if err := scalar(out[key], &text); err != nil {
			return nil, err
		}
		plain, err := decrypt(text, canary)
		if err != nil {
			return nil, fmt.Errorf("the %s cannot be decrypted with the row's canary: %w", key, err)
		}
		out[key] = quoted(plain)
	}
	return out, nil
}

// decrypt reverses BrowseComp's encryption: base64, then exclusive or with the repeated SHA-256 of the password.
func decrypt(text, password string) (string, error) {
	bytes, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", err
	}
	key := sha256.Sum256([]byte(password))
	for i := range bytes {
		bytes[i] ^= key[i%len(key)]
	}
	return strings.ToValidUTF8(string(bytes), "\uFFFD"), nil
}
