package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/dialect"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// Fold configures when a conversation is folded. The agent then writes a summary, which is a sampled turn. Its next
// turn follows a prompt with the question and the summary instead of the whole history. A stretch is the part of the
// conversation between two folds. It is a row of the trajectory (Trajectory.More). The zero value never folds.
type Fold struct {
	At   int // a stretch is folded once it has this number of tokens, newest results included
	Keep int // number of last turns that follow the summary with their results, token by token
}

// Texts that a model reads when its conversation is folded.
const (
	askForSummary = "This conversation is getting long and goes on without its beginning. Write a summary of all that you need to " +
		"finish the task: what you have found out and from where, what failed, what is left to do. Make no call in it."
	afterFold = "\n\nYou have worked on this before. Your summary:\n"
)

// CheckFold returns an error if every stretch would be folded after its first turn. That happens if the prompt of an
// empty question and a summary of TurnTokens together reach Fold.At.
func (l Limits) CheckFold(d dialect.Dialect) error {
	if l.Fold.At == 0 {
		return nil
	}
	ids, _, err := d.Prompt(foldedTask("", ""))
	if err == nil && len(ids)+l.TurnTokens >= l.Fold.At {
		err = fmt.Errorf("limits.fold.at is %d, but the prompt of an empty question has %d tokens and a summary up to %d (limits.max_new_tokens): it "+
			"must be above %d",
			l.Fold.At, len(ids), l.TurnTokens, len(ids)+l.TurnTokens)
	}
	return err
}

// folding is a sampler's state for the next fold.
type folding struct {
	task       string            // the question or sub-task
	recent     []turnWithResults // the newest turns of the stretch, at most Fold.Keep
	summaryDue bool              // the next turn is the summary
}

// turnWithResults is a turn with the results that followed it.
type turnWithResults struct {
	ids  []int32
	text string
}

// lastResults returns the tokens of a stretch's last results, with the request for a summary. If they leave no room for
// a summary, it cuts every result to the same length. It halves that length until there is room, or the length is at most
// 64 bytes. A cut result states how much of it is missing.
func (v *sampler) lastResults(results []dialect.Result) (ids []int32, text string, err error) {
	const shortest = 64 // bytes
	room, _ := v.left()
	room -= max(v.spec.Limits.TurnTokens, 1)
	longest := 0
	for _, r := range results {
		longest = max(longest, len(r.Text))
	}
	cut := slices.Clone(results)
	for {
		cut[len(cut)-1].Text += "\n\n" + askForSummary // some templates allow no message of its own there
		ids, text, err = v.spec.Dialect.Observe(v.turn, cut)
		if err != nil || len(ids) <= room || longest <= shortest {
			return ids, text, err
		}
		longest /= 2
		for i, r := range results {
			cut[i].Text = tool.Truncate(r.Text, longest)
		}
	}
}

// foldedTask returns the question that begins a stretch after a fold.
func foldedTask(task, summary string) string { return task + afterFold + summary }

// fold samples the summary and begins the next stretch. It returns the same results as Turn; the Action is empty unless
// the turn is not a summary.
func (v *sampler) fold(ctx context.Context) (dialect.Action, string, error) {
	finish, err := v.sample(ctx)
	if err != nil || finish != "" {
		return dialect.Action{}, finish, err
	}
	summary := v.spec.Dialect.Parse(v.turn)
	if !summary.Final || summary.Answer == "" {
		return dialect.Action{Invalid: "expected a summary: a text without calls"}, "", nil
	}
	v.next.summaryDue = false
	ids, text, err := v.spec.Dialect.Prompt(foldedTask(v.next.task, summary.Answer))
	if err != nil {
		return dialect.Action{}, "", err
	}
	v.next.recent = newestFitting(v.next.recent, v.spec.Limits.Fold.At-len(ids))
	texts := []string{text}
	for _, e := range v.next.recent {
		ids, texts = slices.Concat(ids, e.ids), append(texts, e.text)
	}
	v.begin(ids, strings.Join(texts, ""))
	return dialect.Action{}, "", nil
}

// newestFitting returns the newest turns that together have fewer than room tokens.
func newestFitting(recent []turnWithResults, room int) []turnWithResults {
	for i, e := range slices.Backward(recent) {
		if room -= len(e.ids); room <= 0 {
			return recent[i+1:]
		}
	}
	return recent
}

// begin begins a stretch with tokens that are not trained in it. If the agent sampled some of them, they are trained in the
// stretch before.
func (v *sampler) begin(ids []int32, text string) {
	t := v.traj
	if len(v.row().Tokens) > 0 {
		row := NewRow(v.spec.Key, v.spec.Main)
		row.ID, row.Version = RowID(t.ID, len(t.More)+1), v.row().Version
		t.More = append(t.More, row)
	}
	v.row().AppendObserved(RolePrompt, ids, text)
	v.computed = 0
	v.spec.Key.Root = v.root(ids)
}

// root returns the key of a stretch's random numbers, because positions count from 0 again. Stretches with the same
// beginning get different keys.
func (v *sampler) root(ids []int32) uint64 {
	root, before := policy.Root(ids, v.spec.Repeat), 0
	for _, r := range v.roots {
		if r == root {
			before++
		}
	}
	v.roots = append(v.roots, root)
	return policy.Branch(root, before)
}
