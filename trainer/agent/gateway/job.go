package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Job is a rollout for a program to play.
type Job struct {
	Ticket Ticket          // without attempt and deadline, which the Player sets
	Text   string          // the question
	Row    json.RawMessage // the row with all its columns; nil: the task has no rows
}

// query returns the row in the form that a program receives: the task's own row, or a row made from the question.
func (j Job) query() json.RawMessage {
	if j.Row != nil {
		return j.Row
	}
	row, _ := json.Marshal(map[string]string{"id": j.Ticket.Query, "question": j.Text}) // texts always marshal
	return row
}

// JobOutcome is the outcome of a job.
type JobOutcome struct {
	Ticket Ticket // ticket of the attempt that produced the outcome
	Result Result
	Stderr string // the end of the program's stderr; "" if the program ran on another machine
	Failed error  // the reason why there is no result; nil if there is one
}

// Result is a program's report.
type Result struct {
	Answer  string                  `json:"-"`       // the team's answer; the task verifies it if Correct is nil
	Correct *float64                `json:"correct"` // its score in [0, 1]
	Format  *bool                   `json:"format"`  // nil: valid if every turn of the main agent is valid
	Experts map[string]ExpertScores `json:"experts"` // scores of the sub-agents' calls, by agent
}

// ExpertScores holds a program's own scores, in [0, 1], of an agent's calls.
type ExpertScores struct {
	Scores []float64          // in the order of the calls' first requests
	ByID   map[string]float64 // or by the id of any reply of the call
}

// UnmarshalJSON reads a list of scores or a mapping.
func (e *ExpertScores) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, &e.Scores) == nil || json.Unmarshal(data, &e.ByID) == nil {
		return nil
	}
	return fmt.Errorf("experts must be a list of scores, or an object with scores by the ids of replies")
}

// maxResult is the largest number of bytes in a result.
const maxResult = 1 << 20

// parseResult reads a program's result: a JSON object with the answer, or any other text, which is the answer itself.
func parseResult(line []byte) (Result, error) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return Result{}, fmt.Errorf("the program printed nothing: its last line must be the answer, or {\"answer\": ...}")
	}
	if len(line) > maxResult {
		return Result{}, fmt.Errorf("the result has %d bytes, but the limit is %d", len(line), maxResult)
	}
	var fields struct {
		Result
		Answer any    `json:"answer"`
		Error  string `json:"error"`
	}
	if line[0] != '{' {
		return Result{Answer: string(line)}, nil
	}
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.UseNumber()
	dec.DisallowUnknownFields()
	if err := dec.Decode(&fields); err != nil {
		return Result{}, fmt.Errorf("the result %.200q: %w; the allowed keys are answer, correct, format, experts and error", line, err)
	}
	if fields.Error != "" {
		return Result{}, fmt.Errorf("the program reported: %.500s", fields.Error)
	}
	r := fields.Result
	switch answer := fields.Answer.(type) {
	case nil:
		if r.Correct == nil {
			return r, fmt.Errorf("the result %.200q has neither answer nor correct", line)
		}
	case string:
		r.Answer = answer
	case json.Number:
		r.Answer = answer.String()
	default:
		return r, fmt.Errorf("the result's answer is neither a text nor a number: %.200q", line)
	}
	r.round()
	return r, r.check()
}

// round changes scores that rounding moved outside 0 to 1, such as 1.0000000000000002 of a sum of parts, to 0 or 1.
func (r Result) round() {
	rounded := func(v float64) float64 {
		if nearest := min(max(v, 0), 1); math.Abs(v-nearest) <= 1e-6 {
			return nearest
		}
		return v
	}
	if r.Correct != nil {
		*r.Correct = rounded(*r.Correct)
	}
	for _, e := range r.Experts {
		for i, v := range e.Scores {
			e.Scores[i] = rounded(v)
		}
		for id, v := range e.ByID {
			e.ByID[id] = rounded(v)
		}
	}
}

func (r Result) check() error {
	scores := map[string][]float64{}
	if r.Correct != nil {
		scores["correct"] = []float64{*r.Correct}
	}
	for name, e := range r.Experts {
		scores["score of a call of "+name] = slices.Concat(e.Scores, slices.Collect(maps.Values(e.ByID)))
	}
	for name, values := range scores {
		for _, v := range values {
			if !(v >= 0 && v <= 1) {
				return fmt.Errorf("the result's %s is %v, but must be from 0 to 1", name, v)
			}
		}
	}
	return nil
}

// Player plays jobs with programs.
type Player interface {
	// Play returns when the job has been played or has failed. It returns an error only if ctx has ended.
	Play(ctx context.Context, j Job) (JobOutcome, error)
}
