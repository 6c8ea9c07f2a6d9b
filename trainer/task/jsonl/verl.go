package jsonl

import (
	"encoding/json"
	"fmt"
)

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
			return nil, fmt.Errorf("%s is an object with %s: name the part that is the answer, with task.layout: rows and task.fields.answer: %s.NAME",
				truth, list(parts), truth)
		}
		out["answer"] = parts["target"]
	}
	return out, nil
}
