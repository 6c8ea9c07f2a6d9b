package jsonl

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// layouts are the forms in which benchmarks publish their questions. Each function converts a row into a row with
// DefaultFields.
var layouts = map[string]func(object) (object, error){
	"hotpotqa":    renameFields(map[string][]string{"id": {"_id", "id"}, "kind": {"type"}, "level": {"level"}}),
	"2wiki":       renameFields(map[string][]string{"id": {"_id", "id"}, "kind": {"type"}}),
	"musique":     renameFields(map[string][]string{"id": {"id"}}, musique),
	"frames":      renameFields(map[string][]string{"id": {"Unnamed: 0", "", "id"}, "question": {"Prompt"}, "answer": {"Answer"}, "kind": {"reasoning_types"}}),
	"fanoutqa":    renameFields(map[string][]string{"id": {"id"}}, fanOutQA),
	"webwalkerqa": renameFields(map[string][]string{"id": {"id"}}, webWalkerQA),
	"gaia":        renameFields(map[string][]string{"id": {"task_id"}, "question": {"Question"}, "answer": {"Final answer"}, "level": {"Level"}}, gaia),
	"browsecomp": renameFields(map[string][]string{"id": {"id"}, "question": {"problem"}, "answer": {"answer"}, "kind": {"problem_topic"}},
		browseComp),
	"verl":     renameFields(map[string][]string{"id": {"id"}, "question": {"prompt"}, "answer": {verlTruth}, "kind": {"data_source"}}, verl),
	"sharegpt": shareGPT,
}

// Layouts returns the names of the known layouts, sorted.
func Layouts() []string { return slices.Sorted(maps.Keys(layouts)) }

// renameFields returns a layout whose rows have their fields under other names, which may be paths. For each field, the
// first name that exists is used. Question and answer keep their names if names does not contain them. The changes then
// complete the new row.
func renameFields(names map[string][]string, changes ...func(row, out object) error) func(object) (object, error) {
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
		for _, change := range changes {
			if err := change(row, out); err != nil {
				return nil, err
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

// gaia reads GAIA's rows. The question names an attachment, but the agents cannot open it. Answers of the test split
// are not published.
func gaia(row, out object) error {
	var question, answer, file string
	if err := errors.Join(scalar(out["question"], &question), scalar(out["answer"], &answer)); err != nil {
		return err
	}
	if answer == "?" {
		return errors.New(`the answer is "?": the answers of this split are not published; use the validation split`)
	}
	if raw, ok := row["file_name"]; ok {
		if err := scalarOrNull(raw, &file); err != nil {
			return withField("file_name", err)
		}
	}
	if file != "" {
		out["question"] = quoted(question + "\n(The file " + file + " belongs to this question. It cannot be opened here.)")
	}
	return nil
}

// verl reads verl's rows. The question is prompt, a list of messages, the answer is reward_model.ground_truth, and the
// kind is data_source. If the ground truth is an object whose only key is target, target is the answer: data sets with
// several accepted answers store them there.
func verl(row, out object) error {
	if err := refuseMedia(row); err != nil {
		return err
	}
	if out["answer"][0] == '{' {
		var parts object
		if err := json.Unmarshal(out["answer"], &parts); err != nil {
			return err
		}
		maps.DeleteFunc(parts, func(_ string, raw json.RawMessage) bool { return !hasValue(raw) })
		if parts["target"] == nil || len(parts) > 1 {
			return fmt.Errorf("%s is an object with %s: name the part that is the answer, with task.layout: rows and task.fields.answer: %s.NAME",
				verlTruth, list(parts), verlTruth)
		}
		out["answer"] = parts["target"]
	}
	return nil
}

const verlTruth = "reward_model.ground_truth"

// webWalkerQA reads WebWalkerQA's rows. kind and level are info.hop and info.difficulty_level.
func webWalkerQA(row, out object) error {
	var extra struct {
		Info struct {
			Hop   string `json:"hop"`
			Level string `json:"difficulty_level"`
		} `json:"info"`
	}
	err := reread(row, &extra)
	out["kind"], out["level"] = quoted(extra.Info.Hop), quoted(extra.Info.Level)
	return err
}

// browseComp reads BrowseComp's rows. Problem and answer are encrypted with the row's canary, so that they cannot be
// found by a search. Rows without a canary are used as they are.
func browseComp(row, out object) error {
	raw, encrypted := row["canary"]
	if !encrypted {
		return nil
	}
	var canary string
	if err := scalar(raw, &canary); err != nil {
		return withField("canary", err)
	}
	for _, key := range []string{"question", "answer"} {
		var text string
		if err := scalar(out[key], &text); err != nil {
			return err
		}
		plain, err := decrypt(text, canary)
		if err != nil {
			return fmt.Errorf("the %s cannot be decrypted with the row's canary: %w", key, err)
		}
		out[key] = quoted(plain)
	}
	return nil
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
