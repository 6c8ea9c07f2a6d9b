package jsonl

import (
	"errors"
	"fmt"
)

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
