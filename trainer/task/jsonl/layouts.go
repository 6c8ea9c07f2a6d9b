package jsonl

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
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
