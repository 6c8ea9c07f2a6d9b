package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// Fold says when a conversation is folded. The agent is then asked for a summary, which is a sampled turn, and its next
// turn follows the prompt with the question and the summary in place of all that it has read and said. What lies between
// two folds is a stretch, a row of the trajectory (Trajectory.More). The zero value never folds.
type Fold struct {
	At   int // tokens of a stretch, newest results included, from which on it is folded
	Keep int // last turns with their results that follow the summary, token by token
}

// What a model reads when its conversation is folded.
const (
	askForSummary = "This conversation is getting long and goes on without its beginning. Write a summary of all that you need to " +
		"finish the task: what you have found out and from where, what failed, what is left to do. Make no call in it."
	afterFold = "\n\nYou have worked on this before. Your summary:\n"
)

// CheckFold returns an error if every stretch would be folded after its first turn: if the prompt of an empty question and a
// summary of TurnTokens reach Fold.At.
func (l Limits) CheckFold(d Dialect) error {
	if l.Fold.At == 0 {
		return nil
	}
	ids, _, err := d.Prompt(foldedTask("", ""))
	if err == nil && len(ids)+l.TurnTokens >= l.Fold.At {
		err = fmt.Errorf("limits.fold.at is %d, but the prompt of an empty question has %d tokens and a summary up to %d (limits.max_new_tokens): it must be above %d",
			l.Fold.At, len(ids), l.TurnTokens, len(ids)+l.TurnTokens)
	}
	return err
}

// folding is what a sampler knows of the next fold.
type folding struct {
	task   string     // what the conversation is about
	recent []exchange // the newest turns of the stretch, at most Fold.Keep
	asked  bool       // the next turn is the summary
}

// exchange is a turn with the results that followed it.
type exchange struct {
	ids  []int32
	text string
}

// remember keeps the newest turn and its results.
func (f *folding) remember(keep int, e exchange) {
	f.recent = append(f.recent, e)
	f.recent = f.recent[max(len(f.recent)-keep, 0):]
}

// asking adds the wish for a summary to the newest result. It is no message of its own: some templates have none there.
func asking(results []Result) []Result {
	out := slices.Clone(results)
	out[len(out)-1].Text += "\n\n" + askForSummary
	return out
}

// lastResults are the tokens of a stretch's last results, with the wish for a summary. Where they would leave no room for one, each
// is cut to the same length, half as long until there is room, and says how much is missing.
func (v *sampler) lastResults(results []Result) (ids []int32, text string, err error) {
	const shortest = 64 // bytes
	room, _ := v.left()
	room -= max(v.spec.Limits.TurnTokens, 1)
	longest := 0
	for _, r := range results {
		longest = max(longest, len(r.Text))
	}
	cut := slices.Clone(results)
	for {
		ids, text, err = v.spec.Dialect.Observe(v.turn, asking(cut))
		if err != nil || len(ids) <= room || longest <= shortest {
			return ids, text, err
		}
		longest /= 2
		for i, r := range results {
			cut[i].Text = tool.Truncate(r.Text, longest)
		}
	}
}

// foldedTask is the question with which a stretch after a fold begins.
func foldedTask(task, summary string) string { return task + afterFold + summary }

// fold samples the summary and begins the stretch that follows it. Its results are those of Turn; the Action is empty
// unless the summary is none.
func (v *sampler) fold(ctx context.Context) (Action, string, error) {
	finish, err := v.sample(ctx)
	if err != nil || finish != "" {
		return Action{}, finish, err
	}
	said := v.spec.Dialect.Parse(v.turn)
	if !said.Final || said.Answer == "" {
		return Action{Invalid: "want a summary, which is text and makes no call"}, "", nil
	}
	v.next.asked = false
	ids, text, err := v.spec.Dialect.Prompt(foldedTask(v.next.task, said.Answer))
	if err != nil {
		return Action{}, "", err
	}
	v.next.recent = fitting(v.next.recent, v.spec.Limits.Fold.At-len(ids))
	texts := []string{text}
	for _, e := range v.next.recent {
		ids, texts = slices.Concat(ids, e.ids), append(texts, e.text)
	}
	v.begin(ids, strings.Join(texts, ""))
	return Action{}, "", nil
}

// fitting are the newest exchanges that have fewer than the given number of tokens.
func fitting(recent []exchange, room int) []exchange {
	for i, e := range slices.Backward(recent) {
		if room -= len(e.ids); room <= 0 {
			return recent[i+1:]
		}
	}
	return recent
}

// begin begins a stretch. Nothing of what it begins with is trained in it: what the agent has sampled of that is trained
// in the stretch before.
func (v *sampler) begin(ids []int32, text string) {
	t := v.traj
	if len(v.row().Tokens) > 0 {
		t.More = append(t.More, Trajectory{ID: RowID(t.ID, len(t.More)+1), Query: t.Query, Rollout: t.Rollout, Agent: t.Agent,
			Invocation: t.Invocation, Version: v.row().Version})
	}
	v.row().AppendObserved(RolePrompt, ids, text)
	v.computed = 0
	v.spec.Key.Root = v.root(ids)
}

// root is the key of a stretch's random numbers, since positions count anew. Stretches that begin alike have different ones.
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
