package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// continueText samples the turn that a text request asks for. If the prompt begins with a whole stored conversation,
// including its last turn, the new turn continues that conversation.
func (a *AgentServer) continueText(ctx context.Context, r *textRequest, c turnCall) (*turn, error) {
	for i, id := range r.Prompt.ids {
		if id < 0 || int(id) >= a.Tokenizer.VocabSize() {
			return nil, invalid("prompt", "token %d is %d, outside the vocabulary of %d", i, id, a.Tokenizer.VocabSize())
		}
	}
	t := &turn{request: turnInput{turnID: turnID{history: r.Prompt.chain()}}}
	return a.answer(ctx, c, t, turnOptions{request: &r.options, prefix: "cmpl-", stops: a.Tokenizer.StopIDs(),
		constraint: func(Rules) (policy.Constraint, error) { return nil, nil },
		place:      func(at *attempt) error { return at.placeText(t, &r.Prompt, a.Tokenizer, c) },
		read: func(t *turn) reply {
			t.sampledText = a.Tokenizer.Decode(t.out.Tokens, false)
			return reply{text: a.Tokenizer.Decode(t.out.Tokens, true)}
		}})
}

// placeText adds the turn that a prompt asks for. The caller must hold the lock.
func (at *attempt) placeText(t *turn, p *prompt, tok *tokenizer.Tokenizer, c turnCall) error {
	if before, rest := at.forest.prefixOf(p); before != nil {
		t.parent, t.prompt = before, rest.complete(tok)
		return before.root.add(t)
	}
	t.prompt = p.complete(tok)
	t.opening = opening{t.request.history, t.prompt.text}
	return at.beginRoot(t, c)
}

// complete returns the prompt with both its text and its tokens.
func (p prompt) complete(tok *tokenizer.Tokenizer) prompt {
	if p.ids == nil {
		return prompt{p.text, tok.Encode(p.text)}
	}
	return prompt{tok.Decode(p.ids, false), p.ids}
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
				after.text, found = strings.CutPrefix(p.text, t.fullText())
				found = found && after.text != ""
			}
			if found && t.size() > size {
				best, rest, size = t, after, t.size()
			}
		}
	}
	return best, rest
}

// fullText returns the text of all tokens up to the end of the turn.
func (t *turn) fullText() string {
	var b strings.Builder
	for _, part := range t.path() {
		b.WriteString(part.prompt.text)
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
