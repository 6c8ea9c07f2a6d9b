package store

import (
	"fmt"
	"strconv"
)

// Phase is one of three things: the rollouts of a training step, the rollouts of an evaluation, or the saving of a
// checkpoint. The names of all keys of a phase end with the phase's name.
type Phase struct {
	Kind string `json:"kind"` // "step", "eval" or "checkpoint"
	Step int64  `json:"step"` // the version trained from, evaluated, or saved
}

// TrainPhase returns the phase of training step n, counted from 0.
func TrainPhase(n int64) Phase { return Phase{Kind: "step", Step: n} }

// EvalPhase returns the phase of the evaluation made at version n.
func EvalPhase(n int64) Phase { return Phase{Kind: "eval", Step: n} }

// Evaluates reports whether the phase is an evaluation.
func (p Phase) Evaluates() bool { return p.Kind == EvalPhase(0).Kind }

// checkpointOf returns the phase in which the workers make the checkpoint of version n.
func checkpointOf(n int64) Phase { return Phase{Kind: "checkpoint", Step: n} }

// String returns the phase's name in keys and messages, such as step-12 or eval-20.
func (p Phase) String() string { return p.Kind + "-" + strconv.FormatInt(p.Step, 10) }

// Invocation is one call of a sub-agent within a rollout. If End is set, it is the notice that a program's attempt has finished.
type Invocation struct {
	Phase   Phase  `json:"phase"`
	Query   string `json:"query"`
	Rollout int    `json:"rollout"`
	Agent   string `json:"agent"`            // the sub-agent called
	Index   int    `json:"index"`            // 0-based, in the order of issue within (query, rollout, agent); for an End, the attempt
	Repeat  int    `json:"repeat,omitempty"` // earlier calls of the agent within the rollout with the same task
	Task    string `json:"task"`             // the sub-task's text
	End     *End   `json:"end,omitempty"`    // nil: a call
}

// End reports to a sub-agent that an attempt of a program at a rollout has ended. The program made its calls of the
// sub-agent through the gateway.
type End struct {
	Scores []float64          `json:"scores"`          // the program's own score of each call, in the order of their first requests
	ByID   map[string]float64 `json:"by_id,omitempty"` // the same by the id of any reply within the call
}

// ID returns the invocation's name within its phase: query/rollout/agent/index.
func (v Invocation) ID() string {
	return fmt.Sprintf("%s/%d/%s/%d", v.Query, v.Rollout, v.Agent, v.Index)
}

// Result is a sub-agent's answer. Failed is the reason why there is no answer; Text is then the message to the caller.
type Result struct {
	Text   string `json:"text"`
	Calls  int    `json:"calls,omitempty"`  // for an End: d_k, the number of calls that the attempt made
	Tokens int    `json:"tokens,omitempty"` // tokens that the sub-agent read and wrote; 0: unknown
	Failed string `json:"failed,omitempty"`
}

// Outcome is the result of a rollout, which the main agent's worker publishes after verifying the answer.
type Outcome struct {
	Query   string         `json:"query"`
	Rollout int            `json:"rollout"`
	Format  bool           `json:"format"`  // the main agent's format was valid
	Correct float64        `json:"correct"` // c, in [0, 1]
	Reward  float64        `json:"reward"`  // the main agent's reward
	Answer  string         `json:"answer,omitempty"`
	Calls   map[string]int `json:"calls,omitempty"`  // d_k of each sub-agent
	Tokens  int            `json:"tokens,omitempty"` // tokens that all agents read and wrote; 0: unknown
	Failed  string         `json:"failed,omitempty"` // reason why the rollout failed; the other results are then ignored

	// Without is the correctness of the main agent's answer without each call, in [0, 1], by sub-agent and index. It contains only the
	// sub-agents with the removal credit (grpo.credit: removal).
	Without map[string][]float64 `json:"without,omitempty"`

	// Reason why a call could not be scored; training omits the rollout, evaluation counts its score.
	Unscored string `json:"unscored,omitempty"`
}

// ID returns the outcome's name within its phase: query/rollout.
func (o Outcome) ID() string { return fmt.Sprintf("%s/%d", o.Query, o.Rollout) }

// Plan lists the queries of a phase.
type Plan struct {
	Queries  []string `json:"queries"`  // in the phase's order
	Rollouts int      `json:"rollouts"` // rollouts of each query

	Replaced []string `json:"replaced,omitempty"` // queries that were also played, and that are replaced in Queries
}
