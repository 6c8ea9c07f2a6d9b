package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// turnCall is a request for a turn, with callbacks for its client.
type turnCall struct {
	ticket  Ticket
	size    int             // bytes of the request
	repeat  int             // the client's number of this call among equal calls; negative: the client gave none
	retried bool            // the client repeats a request because it received no reply
	anchor  anchor          // anchor of a new conversation
	onTurn  func(id string) // called with the reply's id before the first token; may be nil
	onToken func(id int32)

	// Set by answer.
	step       int64 // part of the key of the random numbers
	sampling   policy.Sampling
	constraint policy.Constraint // constraint on the turn's tokens; nil: none
}

// chat samples the turn that a chat request asks for, or returns the turn if an earlier request asked for it.
func (a *AgentServer) chat(ctx context.Context, r *chatRequest, c turnCall) (*turn, error) {
	d, err := a.dialectOf(r)
	if err != nil {
		return nil, err
	}
	opt := turnOptions{request: &r.options, prefix: cmp.Or(r.prefix, "chatcmpl-"), stops: d.template.Stops().IDs}
	opt.constraint = func(rules Rules) (policy.Constraint, error) {
		if err := a.checkKwargs(r, d, rules); err != nil {
			return nil, err
		}
		return a.constraint(r, d, rules)
	}
	all, n := chains(r.Messages), len(r.Messages)-1
	t := &turn{request: turnInput{turnID: turnID{all[n+1], d.key}, messages: r.Messages}}
	opt.place = func(at *attempt) error { return at.placeChat(t, all, d, c) }
	if r.continues() {
		t = &turn{request: turnInput{turnID: turnID{all[n+1].then(message{Role: "continued"}), d.key}, messages: r.Messages[:n],
			prefill: r.Messages[n].Content}}
		opt.place = func(at *attempt) error { return at.placeContinuation(t, r.Messages, all, d, c) }
	}
	opt.read = func(t *turn) reply {
		t.sampledText = d.template.Text(t.out.Tokens)
		out := r.read(d, t.out, a.Limits.CallsPerTurn)
		for i := range out.calls {
			out.calls[i].ID = t.id(a.Name, c.ticket, strconv.Itoa(i))[:9]
		}
		whole := out // as the client reads it: with the text that it continues, and without what follows a stop string
		whole.text = string(t.request.prefill) + cut(out.text, r.Stop)
		out.violation = r.violatedBy(whole)
		return out
	}
	return a.answer(ctx, c, t, opt)
}

// turnOptions holds the options of a request, and the functions that place and read a request's turn.
type turnOptions struct {
	request    *options
	prefix     string                                 // prefix of the reply's id
	place      func(*attempt) error                   // adds the turn
	constraint func(Rules) (policy.Constraint, error) // on its tokens
	read       func(*turn) reply
	stops      []int32 // tokens that end the turn
}

// answer samples the turn that a request asks for, unless an earlier request asked for it, and makes the reply. The new
// turn has its history and its dialect's key, which identify it.
func (a *AgentServer) answer(ctx context.Context, c turnCall, fresh *turn, opt turnOptions) (*turn, error) {
	at, rules, endRequest, err := a.enter(ctx, c.ticket)
	if err != nil {
		return nil, err
	}
	defer endRequest()
	c.step = rules.Step
	if c.sampling, err = opt.request.sampling(rules); err != nil {
		return nil, err
	}
	c.sampling.StopIDs = opt.stops
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(at.ctx, func() { cancel(context.Cause(at.ctx)) })()
	if c.constraint, err = opt.constraint(rules); err != nil {
		return nil, err
	}
	t, known, err := at.find(ctx, a.Name, c, fresh, opt)
	if err != nil || known {
		return t, err
	}
	out, err := a.sample(ctx, at, t, c)
	at.mu.Lock()
	defer at.mu.Unlock()
	defer close(t.done)
	if t.err = err; err != nil {
		var refused *apiError
		if ctx.Err() == nil && !errors.As(err, &refused) { // the engine failed; this must be reported even if the program ignores it
			at.failed = errors.Join(at.failed, err)
		}
		if !t.refused {
			at.forest.forget(t)
		}
		return nil, err
	}
	t.out, t.sampled = out, true
	id := t.reply.id
	t.reply = opt.read(t)
	t.reply.id = id
	t.reply.thinking, t.reply.text = cut(t.reply.thinking, opt.request.Stop), cut(t.reply.text, opt.request.Stop)
	at.turns++
	at.calls = t.reply.calls
	at.forest.remember(t, message{Role: "assistant", Content: t.request.prefill + content(t.reply.text), ToolCalls: t.reply.calls})
	return t, nil
}

// find finds a request's turn, or adds a fresh one. It waits for a turn that an earlier request asked for. If that
// request's client goes away before the turn is sampled, find looks again.
func (at *attempt) find(ctx context.Context, name string, c turnCall, fresh *turn, opt turnOptions) (t *turn, known bool, err error) {
	if err := at.store(c.size); err != nil {
		return nil, false, err
	}
	for {
		t, known, err = at.findNow(name, c, fresh, opt)
		if err != nil || !known {
			return t, known, err
		}
		select {
		case <-t.done:
			if t.err == nil && c.onTurn != nil {
				c.onTurn(t.reply.id)
			}
			if !errors.Is(t.err, context.Canceled) {
				return t, true, t.err
			}
		case <-ctx.Done():
			return nil, true, context.Cause(ctx)
		}
	}
}

// store counts the bytes of a request, and refuses it if the rollout has too many.
func (at *attempt) store(size int) error {
	at.mu.Lock()
	defer at.mu.Unlock()
	if at.stored += size; at.stored > maxStored {
		return refuse(400, "too_many", "the rollout's requests have more than %d MiB", maxStored>>20)
	}
	return nil
}

// findNow finds a request's turn, or adds a fresh one. known is true if an earlier request asked for it.
func (at *attempt) findNow(name string, c turnCall, fresh *turn, opt turnOptions) (t *turn, known bool, err error) {
	at.mu.Lock()
	defer at.mu.Unlock()
	if t = at.forest.findExisting(fresh.request.turnID, c); t != nil {
		return t, true, nil
	}
	if err = opt.place(at); err == nil {
		fresh.done, fresh.reply.id = make(chan struct{}), fresh.id(name, c.ticket, opt.prefix)
	}
	return fresh, false, err
}

// sample samples a turn with the policy.
func (a *AgentServer) sample(ctx context.Context, at *attempt, t *turn, c turnCall) (out policy.Completion, err error) {
	s := c.sampling
	at.mu.Lock()
	before := t.parent.tokens()
	tokens := append(before, t.prompt.ids...)
	key := policy.Key{RunSeed: a.Seed, Step: c.step, Query: c.ticket.Query, Rollout: c.ticket.Rollout, Agent: a.Name,
		Root: policy.Branch(t.rowKey(), t.branch)} // a branch is another answer to the same messages
	room := a.room(len(tokens), s.MaxNew)
	long := a.Limits.Turns > 0 && len(t.path()) > a.Limits.Turns
	t.refused = room <= 0 || long
	at.mu.Unlock()
	if long {
		return out, refuse(400, "turns", "the conversation already has %d turns, which is limits.max_turns of %s", a.Limits.Turns, a.Name)
	}
	if room <= 0 {
		return out, &apiError{status: 400, code: "context_length_exceeded", param: "messages",
			message: fmt.Sprintf("the conversation has %d tokens, but the limit is %d: shorten it", len(tokens), a.MaxTokens())}
	}
	if c.ticket.Phase == OpenPhase {
		if err := a.fits(len(tokens), s.MaxNew); err != nil {
			return out, err
		}
	}
	s.MaxNew = room
	if c.onTurn != nil {
		c.onTurn(t.reply.id)
	}
	a.inFlight.Add(1)
	defer a.inFlight.Add(-1)
	out, err = a.Policy.Generate(ctx, policy.Request{Tokens: tokens, Sampling: s, Key: key,
		Computed: max(len(before)-1, 0), OnToken: c.onToken, Constraint: c.constraint})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
			return out, cause
		}
		return out, err
	}
	return out, out.Check(room)
}

// rowKey returns the key of the random numbers of the turn's row. If the client rewrote the history, the key differs:
// otherwise the positions would repeat random numbers whose results may be in the prompt.
func (t *turn) rowKey() uint64 {
	first := t
	for first.parent != nil && !first.parentAnswered {
		first = first.parent
	}
	return policy.Root(slices.Concat(first.parent.tokens(), first.prompt.ids), t.root.repeat)
}

// MaxTokens returns the largest number of tokens that a conversation may have.
func (a *AgentServer) MaxTokens() int {
	n := a.Policy.ContextLimit()
	if a.Limits.Tokens > 0 {
		n = min(n, a.Limits.Tokens)
	}
	return n
}

// room returns the number of tokens that a turn after n tokens may have. requested is the client's limit, or 0.
func (a *AgentServer) room(n, requested int) int {
	room := a.MaxTokens() - n
	for _, limit := range []int{a.Limits.TurnTokens, requested} {
		if limit > 0 {
			room = min(room, limit)
		}
	}
	return room
}

// fits returns an error if a client asks for more tokens than the context has room for after n tokens, as OpenAI's and vLLM's
// servers do. A smaller limit of the agent's turns ends a reply with the finish reason length, like the client's own limit.
func (a *AgentServer) fits(n, requested int) error {
	free := a.MaxTokens() - n
	if requested <= free {
		return nil
	}
	return &apiError{status: 400, code: "context_length_exceeded", param: "max_tokens",
		message: fmt.Sprintf("max_tokens is %d, but the conversation already has %d tokens and the context of %s has %d: ask for at most %d tokens, "+
			"or leave max_tokens out", requested, n, a.Name, a.MaxTokens(), free)}
}

// placeChat adds the turn that a chat's messages ask for. all has their chains. The caller must hold the lock.
func (at *attempt) placeChat(t *turn, all []chain, d *dialect, c turnCall) (err error) {
	rewritten := at.forest.findRewrittenRoot(all)
	if before := at.forest.findParent(all); before != nil {
		fits, err := before.extend(t, d.template)
		if err != nil {
			return err
		}
		if fits {
			t.parent = before
			return before.root.add(t)
		}
		rewritten = before.root
	}
	t.prompt.ids, t.prompt.text, err = d.template.Prompt(templateMessages(t.request.messages, d.template.Neutral))
	if err != nil {
		return invalid("messages", "%v", err)
	}
	t.opening = opening{t.request.history, lastUser(t.request.messages)}
	return at.begin(t, rewritten, d, c)
}

// begin adds a turn that begins a row. The row belongs to the root whose history the client or the template has
// rewritten, or, if rewritten is nil, to a new root.
func (at *attempt) begin(t *turn, rewritten *root, d *dialect, c turnCall) error {
	if rewritten == nil {
		return at.beginRoot(t, c)
	}
	t.prompt.ids = rewritten.sampledAs(t.prompt.text, d.template.Encode)
	return rewritten.add(t)
}

// beginRoot adds a turn that begins a new root.
func (at *attempt) beginRoot(t *turn, c turnCall) error {
	r, err := at.forest.addRoot(t, c)
	if err != nil {
		return err
	}
	return r.add(t)
}

// extend sets the tokens between this turn and next. It returns false if the template no longer prints this turn and
// the messages before it in the same way.
func (t *turn) extend(next *turn, template *agent.Template) (bool, error) {
	fresh := templateMessages(next.request.messages, template.Neutral)[len(t.request.messages)+1:]
	if next.request.dialectKey != t.request.dialectKey {
		return false, nil
	}
	fits, err := template.Extends(templateMessages(t.request.messages, template.Neutral), t.reply.thinking != "", fresh)
	if err == nil && !fits {
		return false, nil
	} // if the template cannot print such a history at all, append the rest, as agent.Run does
	next.prompt.ids, next.prompt.text, err = template.Observe(t.out.Tokens, fresh)
	if err != nil {
		return false, invalid("messages", "%v", err)
	}
	return true, nil
}

// id returns an id that identifies a turn within a run. It depends only on the agent and its prompt, so a program that
// is played again gets the same ids.
func (t *turn) id(agent string, k Ticket, prefix string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %s %d %d ", agent, k.Phase, k.rollout(), t.root.key, t.branch)
	h.Write(t.request.history[:])
	return prefix + hex.EncodeToString(h.Sum(nil)[:12])
}

// anchorOf returns the call of a, the main agent, to which a sub-agent's conversation with this task belongs: the call with
// the longest argument that the task contains.
func (a *AgentServer) anchorOf(t Ticket, task string) anchor {
	a.mu.Lock()
	var at *attempt
	if p := a.phases[t.Phase]; p != nil {
		at = p.attempts[t.rollout()]
	}
	a.mu.Unlock()
	if at == nil || at.number != t.Attempt {
		return anchor{}
	}
	at.mu.Lock()
	defer at.mu.Unlock()
	best, length := len(at.calls), 0
	for i, c := range at.calls {
		var arguments map[string]any
		if json.Unmarshal([]byte(c.Function.Arguments), &arguments) != nil {
			continue
		}
		for _, v := range arguments {
			if text, ok := v.(string); ok && len(text) > length && strings.Contains(task, text) {
				best, length = i, len(text)
			}
		}
	}
	return anchor{at.turns, best}
}
