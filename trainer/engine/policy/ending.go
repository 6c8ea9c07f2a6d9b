package policy

import (
	"bytes"
	"slices"
)

// Ending finds the end of a turn, token by token. All policies use it, so that a turn ends in the same way with any
// sampler.
type Ending struct {
	sampling   Sampling
	context    int // tokens that may follow the prompt until the context limit
	tokenBytes func(id int32) []byte

	sampled int
	text    []byte // of the tokens so far, if there are stop strings
}

// NewEnding returns an Ending for a turn after a prompt of the given number of tokens. contextLimit is
// Sampler.ContextLimit. tokenBytes returns the bytes of a token; it may be nil if there are no stop strings.
func NewEnding(s Sampling, prompt, contextLimit int, tokenBytes func(id int32) []byte) *Ending {
	return &Ending{sampling: s, context: contextLimit - prompt, tokenBytes: tokenBytes}
}

// Add counts a sampled token. It reports whether the turn ends with that token, and the reason.
func (e *Ending) Add(id int32) (why Finish, ended bool) {
	e.sampled++
	switch {
	case slices.Contains(e.sampling.StopIDs, id), e.stopString(id):
		return FinishStop, true
	case e.sampled >= e.sampling.MaxNew:
		return FinishLength, true
	case e.sampled >= e.context:
		return FinishContext, true
	}
	return "", false
}

// Room returns the number of tokens that the turn may still have.
func (e *Ending) Room() int { return min(e.sampling.MaxNew, e.context) - e.sampled }

// stopString appends the token's bytes to the turn's text and reports whether a stop string ends in these bytes.
func (e *Ending) stopString(id int32) bool {
	if len(e.sampling.StopStrings) == 0 {
		return false
	}
	fresh := e.tokenBytes(id)
	e.text = append(e.text, fresh...)
	for _, s := range e.sampling.StopStrings {
		from := min(max(len(e.text)-len(fresh)-len(s)+1, 0), len(e.text))
		if bytes.Contains(e.text[from:], []byte(s)) {
			return true
		}
	}
	return false
}
