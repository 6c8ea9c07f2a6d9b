package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// complete samples the turn that a text request asks for. If the prompt begins with a whole stored conversation,
// including its last turn, the new turn continues that conversation.
func (a *AgentServer) complete(ctx context.Context, r *textRequest, c call) (*turn, error) {
	for i, id := range r.Prompt.ids {
		if id < 0 || int(id) >= a.Tokenizer.VocabSize() {
			return nil, invalid("prompt", "token %d is %d, outside the vocabulary of %d", i, id, a.Tokenizer.VocabSize())
		}
	}
	return a.answer(ctx, c, asking{options: &r.options, prefix: "cmpl-", stops: a.Tokenizer.StopIDs(),
		constraint: func(Rules) (policy.Constraint, error) { return nil, nil },
		place: func(at *attempt, _ Rules) (*turn, bool, error) {
			return at.placeText(&r.Prompt, a.Tokenizer.Encode, a.Tokenizer.Decode, c)
		}, read: func(t *turn) reply {
			t.sampledText = a.Tokenizer.Decode(t.out.Tokens, false)
			return reply{text: a.Tokenizer.Decode(t.out.Tokens, true)}
		}})
}

// placeText finds or adds the turn that a prompt asks for. known is true if an earlier request asked for it. The caller
// must hold the lock.
func (at *attempt) placeText(p *prompt, encode func(string) []int32, decode func([]int32, bool) string, c call) (t *turn, known bool, err error) {
	t = &turn{asked: p.chain()}
	if before := at.forest.answered(request{t.asked, ""}, c); before != nil {
		return before, true, nil
	}
	if before, rest := at.forest.prefixOf(p); before != nil {
		t.parent = before
		if t.prompt, t.text = rest.ids, rest.text; p.ids == nil {
			t.prompt = encode(rest.text)
		} else {
			t.text = decode(rest.ids, false)
		}
		return t, false, before.root.add(t)
	}
	if t.prompt, t.text = p.ids, p.text; p.ids == nil {
		t.prompt = encode(p.text)
	} else {
		t.text = decode(p.ids, false)
	}
	if len(at.forest.roots) >= maxRoots {
		return nil, false, refuse(400, "too_many", "the rollout has %d conversations already", maxRoots)
	}
	first := []message{{Role: "user", Content: content(t.text)}}
	return t, false, at.forest.addRoot(t.prompt, c.repeat, first, t.asked, c.anchor).add(t)
}

// prefixOf finds the longest sampled conversation that a prompt begins with, and returns its last turn and the rest of
// the prompt.
func (f *forest) prefixOf(p *prompt) (best *turn, rest prompt) {
	size := 0
	for _, r := range f.roots {
		for _, t := range r.turns {
			if !t.sampled {
				continue
			}
			var after prompt
			found := false
			if tokens := t.tokens(); p.ids != nil {
				if found = len(p.ids) > len(tokens) && slices.Equal(p.ids[:len(tokens)], tokens); found {
					after.ids = p.ids[len(tokens):]
				}
			} else {
				after.text, found = strings.CutPrefix(p.text, t.whole())
				found = found && after.text != ""
			}
			if found && t.size() > size {
				best, rest, size = t, after, t.size()
			}
		}
	}
	return best, rest
}

// whole returns the text of all tokens up to the end of the turn.
func (t *turn) whole() string {
	var b strings.Builder
	for _, part := range t.path() {
		b.WriteString(part.text)
		b.WriteString(part.sampledText)
	}
	return b.String()
}

// chain returns a hash of the prompt.
func (p *prompt) chain() chain {
	h := sha256.New()
	h.Write([]byte("prompt " + p.text))
	for _, id := range p.ids {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(id)))
	}
	return chain(h.Sum(nil))
}
