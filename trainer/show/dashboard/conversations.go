package dashboard

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// Limits on an agent's conversations: the number that are kept after they ended in this process, and the number of turns
// that are shown of each.
const (
	keptConversations = 1024
	shownTurns        = 16
)

// conversation is a conversation that has ended, in the store's form.
type conversation struct {
	Phase string         `json:"phase"`
	ID    string         `json:"id"` // query/rollout; for a sub-agent query/rollout/agent/invocation
	Turns []metrics.Turn `json:"turns"`
	More  bool           `json:"more,omitempty"` // it has further turns
}

// keep adds the conversation in an agent's progress, if there is one, to its newest conversations.
func (d *activityNow) keep(x metrics.Progress) {
	if x.Ended == nil {
		return
	}
	t := conversation{Phase: x.Phase(), ID: x.Ended.ID}
	for _, turn := range x.Ended.Turns {
		if t.More = len(t.Turns) == shownTurns; t.More {
			break
		}
		if strings.TrimSpace(turn.Text) != "" {
			t.Turns = append(t.Turns, metrics.Turn{Sampled: turn.Sampled, Text: clip(turn.Text)})
		}
	}
	if d.conversations = append(d.conversations, t); len(d.conversations) > keptConversations {
		d.conversations = slices.Clone(d.conversations[keptConversations/2:]) // a copy, since the slice may be in use by publish
	}
}

// shownConversations returns an agent's conversations in the rollouts that pages show now.
func shownConversations(ctx context.Context, w worker, all []conversation) []conversation {
	phase, rollouts, err := w.Display.NewestOutcomes(ctx, shownRollouts)
	if err != nil {
		return nil // the page reports this error when it reads the store
	}
	var out []conversation
	for _, t := range all {
		if t.Phase == phase.String() && slices.ContainsFunc(rollouts, func(id string) bool { return t.ID == id || strings.HasPrefix(t.ID, id+"/") }) {
			out = append(out, t)
		}
	}
	return out
}

// encode returns an activity as JSON, without the conversations that exceed the store's limit.
func (a activity) encode() []byte {
	for {
		text, _ := json.Marshal(a) // texts and numbers: cannot fail
		if len(text) <= store.MaxShown || len(a.Conversations) == 0 {
			return text
		}
		a.Conversations = a.Conversations[:len(a.Conversations)-1]
	}
}

// turnsOf returns an agent's turns in a conversation of a shown rollout, or nil if its worker has not published it.
func (r *runState) turnsOf(agent, id string) []turn {
	conversations := r.activities[agent].Conversations
	i := slices.IndexFunc(conversations, func(t conversation) bool { return t.Phase == r.phase && t.ID == id })
	if i < 0 {
		return nil
	}
	var out []turn
	for n, s := range conversations[i].Turns {
		t := turn{r.class(agent), agent, "said", s.Text}
		switch {
		case s.Sampled:
		case n == 0:
			t.Class, t.Who, t.Kind = "", "prompt", "read"
		default:
			t.Class, t.Who, t.Kind = "", "is told", "read"
		}
		out = append(out, t)
	}
	if conversations[i].More {
		out = append(out, turn{"", "and so on", "read", "more turns are in the run's trajectories/"})
	}
	return out
}
