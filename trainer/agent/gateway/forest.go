package gateway

import (
	"math"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// forest holds an agent's conversations in one attempt. Each conversation is a root: an invocation of the agent. A
// root's turns form a tree. The parent of a turn is the turn whose tokens it continues. If the client or its template
// rewrote the history, the turn has no parent and begins a new row within the root. The caller must hold the lock.
type forest struct {
	roots     []*root           // in the order of their first requests
	byHistory map[chain][]*turn // sampled turns by the chain of the messages up to their reply
	removed   map[turnID]int    // number of turns that were removed and not requested again
}

// turnID identifies a turn by what its requests have in common.
type turnID struct {
	history    chain // chain of the messages before the turn
	dialectKey string
}

// turnInput is the part of a request that its turn keeps.
type turnInput struct {
	turnID
	messages []message // all messages before the turn
	prefill  content   // content of the assistant's message that the turn continues
}

// root is one invocation.
type root struct {
	key     uint64 // part of the key of its random numbers
	hash    uint64 // hash of the first prompt
	repeat  int    // ordinal among the roots with the same first prompt
	arrival int
	anchor  anchor
	opening opening
	turns   []*turn
}

// opening is the first request of a root.
type opening struct {
	chain chain  // chain of its messages
	task  string // the last message of the user
}

// anchor identifies the call of the main agent to which a root belongs: the number of turns that the main agent had
// sampled, and the index of the call. The call is in the last of these turns and has the root's task among its
// arguments.
type anchor struct{ Turn, Call int }

// turn is one sampled turn.
type turn struct {
	root           *root
	parent         *turn // nil: the first turn of a row
	request        turnInput
	branch         int     // number of earlier turns of the root that answered the same request
	parentAnswered bool    // another turn with the same parent was answered before, and its text may be in the prompt
	siblings       []*turn // turns with the same parent that were not answered yet when this one was requested

	prompt      prompt  // tokens and text between the parent's turn and this one; for the first turn of a row, all before it
	opening     opening // set if the turn may begin a root
	out         policy.Completion
	sampledText string // text of out
	reply       reply  // its id is set before it is sampled
	sampled     bool
	refused     bool          // a limit left no room for it; its prompt stays in the trajectory, as in agent.Run
	done        chan struct{} // closed when the turn is sampled or has failed
	err         error
}

// tokens returns all tokens up to the end of the turn.
func (t *turn) tokens() []int32 {
	if t == nil {
		return nil
	}
	return slices.Concat(t.parent.tokens(), t.prompt.ids, t.out.Tokens)
}

// size returns the number of tokens up to the end of the turn.
func (t *turn) size() int {
	n := 0
	for ; t != nil; t = t.parent {
		n += len(t.prompt.ids) + len(t.out.Tokens)
	}
	return n
}

// path returns the turns of a row up to this one.
func (t *turn) path() []*turn {
	var out []*turn
	for ; t != nil; t = t.parent {
		out = append(out, t)
	}
	slices.Reverse(out)
	return out
}

// findParent finds the turn that a request's messages extend: the end of the longest conversation that they begin with.
// If several conversations are equal, it returns the first turn without a successor.
func (f *forest) findParent(chains []chain) *turn {
	for n := len(chains) - 2; n > 0; n-- {
		turns := f.byHistory[chains[n]]
		if len(turns) == 0 {
			continue
		}
		for _, t := range turns {
			if !slices.ContainsFunc(t.root.turns, func(other *turn) bool { return other.parent == t }) {
				return t
			}
		}
		return turns[0]
	}
	return nil
}

// findEqual finds the last turn of a request with the same messages, functions and template variables. If repeat is not negative, only the
// root with that ordinal counts.
func (f *forest) findEqual(history chain, dialectKey string, repeat int) *turn {
	for _, r := range slices.Backward(f.roots) {
		for _, t := range slices.Backward(r.turns) {
			if t.request.history == history && t.request.dialectKey == dialectKey && (repeat < 0 || repeat == r.repeat) {
				return t
			}
		}
	}
	return nil
}

// findExisting finds an existing turn that answers a request: the turn of an equal request that was refused, or that
// this request repeats. After a disconnect the turn was removed. A retry then asks for it again, and findExisting returns
// nil so that it is sampled anew.
func (f *forest) findExisting(r turnID, c turnCall) *turn {
	wasRemoved := c.retried && c.repeat < 0 && f.removed[r] > 0
	if wasRemoved {
		f.removed[r]--
	}
	if t := f.findEqual(r.history, r.dialectKey, c.repeat); t != nil && (c.retried && !wasRemoved || t.refused) {
		return t
	}
	return nil
}

// findRewrittenRoot finds the root whose first request a request begins with, although the request extends none of
// the root's turns.
func (f *forest) findRewrittenRoot(chains []chain) *root {
	for n := len(chains) - 2; n > 0; n-- {
		for _, r := range f.roots {
			if r.opening.chain == chains[n] {
				return r
			}
		}
	}
	return nil
}

// addRoot adds the root that a turn begins.
func (f *forest) addRoot(t *turn, c turnCall) (*root, error) {
	if len(f.roots) >= maxRoots {
		return nil, refuse(400, "too_many", "the rollout has %d conversations already", maxRoots)
	}
	r := &root{hash: policy.Root(t.prompt.ids, 0), opening: t.opening, anchor: c.anchor}
	taken := map[int]bool{}
	for _, other := range f.roots {
		taken[other.repeat] = taken[other.repeat] || other.hash == r.hash
	}
	for r.repeat = max(c.repeat, 0); taken[r.repeat]; {
		r.repeat++
	}
	r.key = policy.Root(t.prompt.ids, r.repeat)
	if n := len(f.roots); n > 0 {
		r.arrival = f.roots[n-1].arrival + 1
	}
	f.roots = append(f.roots, r)
	return r, nil
}

// add adds a turn to the root.
func (r *root) add(t *turn) error {
	if len(r.turns) >= maxTurns {
		return refuse(400, "too_many", "the conversation has %d turns already", maxTurns)
	}
	for _, other := range r.turns {
		if other.request.history == t.request.history {
			t.branch = max(t.branch, other.branch+1)
		}
		switch {
		case other.parent != t.parent:
		case !other.ended():
			t.siblings = append(t.siblings, other)
		case other.request.history != t.request.history:
			t.parentAnswered = true
		}
	}
	t.root, r.turns = r, append(r.turns, t)
	return nil
}

// remember registers a sampled turn, so that later requests can extend it.
func (f *forest) remember(t *turn, reply message) {
	if f.byHistory == nil {
		f.byHistory = map[chain][]*turn{}
	}
	c := t.request.history.then(reply)
	if t.request.messages != nil {
		c = chains(slices.Concat(t.request.messages, []message{reply}))[len(t.request.messages)+1]
	}
	f.byHistory[c] = append(f.byHistory[c], t)
}

// forget removes a turn that was not sampled, and its root if the root has no other turns.
func (f *forest) forget(t *turn) {
	if f.removed == nil {
		f.removed = map[turnID]int{}
	}
	f.removed[t.request.turnID]++
	t.root.turns = slices.DeleteFunc(t.root.turns, func(other *turn) bool { return other == t })
	if len(t.root.turns) == 0 {
		f.roots = slices.DeleteFunc(f.roots, func(r *root) bool { return r == t.root })
	}
}

// sampledAs returns the tokens of text. As far as the text agrees with the pieces of a row, these are the tokens that
// were read or sampled in that row. The rest of the text is tokenised.
func (r *root) sampledAs(text string, encode func(string) []int32) []int32 {
	var best []int32
	rest := text
	for _, leaf := range r.turns {
		if !leaf.sampled {
			continue
		}
		var ids []int32
		remaining := text
	row:
		for _, t := range leaf.path() {
			for _, piece := range []prompt{t.prompt, {t.sampledText, t.out.Tokens}} {
				after, found := strings.CutPrefix(remaining, piece.text)
				if !found {
					break row
				}
				ids, remaining = append(ids, piece.ids...), after
			}
		}
		if len(remaining) < len(rest) {
			best, rest = ids, remaining
		}
	}
	return append(best, encode(rest)...)
}

// rows returns the root's rows, one for each path from the first turn of a row to a last turn. A turn that
// several rows share is marked as sampled, and so trained, only in the first of them. The order of the rows does not
// depend on the order of the requests.
func (r *root) rows() []agent.Row {
	var leaves []*turn
	for _, t := range r.turns {
		if !slices.ContainsFunc(r.turns, func(other *turn) bool { return other.parent == t }) {
			leaves = append(leaves, t)
		}
	}
	slices.SortFunc(leaves, func(a, b *turn) int { return slices.Compare(a.tokens(), b.tokens()) })
	var rows []agent.Row
	trained := map[*turn]bool{}
	for _, leaf := range leaves {
		var row agent.Row
		for i, t := range leaf.path() {
			role := agent.RoleObserved
			if i == 0 {
				role = agent.RolePrompt
				if row.Version = t.out.Version; t.refused {
					row.Version = math.MaxInt64 // it is never the oldest
				}
			}
			row.AppendObserved(role, t.prompt.ids, t.prompt.text)
			if trained[t] {
				row.AppendObserved(agent.RoleObserved, t.out.Tokens, t.sampledText)
				continue
			}
			if trained[t] = true; t.refused {
				continue
			}
			row.Version = min(row.Version, t.out.Version)
			row.AppendSampled(t.out, t.sampledText)
		}
		rows = append(rows, row)
	}
	return rows
}

// ended reports whether the turn is sampled or has failed.
func (t *turn) ended() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// last returns the turn that was requested last, which is the end of the invocation. Among turns that were requested in
// parallel, it is the turn with the longest history.
func (r *root) last() *turn {
	newest := r.turns[len(r.turns)-1]
	last := newest
	for _, t := range newest.siblings {
		if len(t.request.messages) > len(last.request.messages) && slices.Contains(r.turns, t) { // it may have been removed
			last = t
		}
	}
	return last
}
