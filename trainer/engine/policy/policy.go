// Package policy defines how an agent's turns are sampled. A Policy continues a prompt and reports the log-prob of each
// sampled token under the distribution that it was sampled from. Packages local (our engine), remote (vLLM and SGLang
// servers) and launch (our engine on several devices) implement it.
package policy

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
)

// ErrClosed is returned by calls on a closed policy.
var ErrClosed = errors.New("policy: engine is closed")

// Key names one conversation of a run. All fields except Invocation form Philox's key; the token's position is its counter. So a
// token's random number does not depend on time, on the batch or on arrival order.
type Key struct {
	RunSeed    uint64 // seed of the whole run
	Step       int64  // training step to which the rollout belongs
	Query      string // query id, epoch included
	Rollout    int    // k: which of the K attempts at the query
	Agent      string // agent's name
	Invocation int    // i-th call of this agent within the rollout, for names; 0 for the main agent
	Root       uint64 // names the conversation among those of this agent within the rollout; see Root
}

// Root names a conversation by its first prompt, and not by its time of arrival, so that concurrent calls draw the same
// random numbers in every run. repeat counts the agent's earlier conversations within the rollout that have the same
// first prompt, from 0.
func Root(prompt []int32, repeat int) uint64 {
	h := sha256.New()
	var word [8]byte
	for _, id := range prompt {
		binary.LittleEndian.PutUint32(word[:4], uint32(id))
		h.Write(word[:4])
	}
	binary.LittleEndian.PutUint64(word[:], uint64(repeat))
	h.Write(word[:])
	return binary.LittleEndian.Uint64(h.Sum(nil))
}

// Branch returns the root of the n-th other conversation with the same first prompt; for n = 0 it returns root.
func Branch(root uint64, n int) uint64 {
	if n == 0 {
		return root
	}
	return Root([]int32{int32(root), int32(root >> 32)}, n)
}

// Sampling holds the settings for drawing tokens and ending a turn. Training samples with Temperature alone; TopK, TopP
// and MinP are for generation and evaluation.
type Sampling struct {
	Temperature float64  // 0: greedy; otherwise at least LeastTemperature
	TopK        int      // keep the k likeliest tokens; 0 is off
	TopP        float64  // nucleus mass in (0,1); 0 or 1 is off
	MinP        float64  // keep tokens with p >= MinP * max p; 0 is off
	MaxNew      int      // most tokens to sample in this turn; at least 1
	StopIDs     []int32  // the turn ends when one of these is sampled; the id is part of the completion
	StopStrings []string // the turn ends when its decoded text contains one of these
}

// Finish is the reason for a completion's end.
type Finish string

const (
	FinishStop      Finish = "stop"      // a stop id was sampled or a stop string appeared
	FinishLength    Finish = "length"    // MaxNew tokens were sampled
	FinishContext   Finish = "context"   // the model's context limit was reached
	FinishCancelled Finish = "cancelled" // the caller's context ended; the tokens are a prefix
)

// Request asks for one turn. Tokens are all tokens before it: prompt, earlier turns, observations.
type Request struct {
	Tokens   []int32
	Sampling Sampling
	Key      Key
	Computed int // number of Tokens that went through the model in earlier turns of the conversation; 0: none, or unknown

	// Constraint, if set, restricts the tokens. A policy that does not support constraints refuses the request.
	Constraint Constraint

	// OnToken, if set, is called with each sampled token, in order, before Generate returns. It may run on the
	// engine's goroutine, so it must neither block nor call the engine.
	OnToken func(id int32)
}

// Constraint follows one turn and returns the tokens that may come next. Log-probs belong to the distribution over these
// tokens. A policy calls its methods one after the other.
type Constraint interface {
	// Allowed returns the tokens that may come next: bit id%32 of word id/32 for each. The slice is valid until the
	// next call.
	Allowed() ([]int32, error)

	// Accept advances by a sampled token.
	Accept(id int32) error
}

// Constrains reports whether a sampler supports constraints.
func Constrains(s Sampler) bool {
	c, ok := s.(interface{ Constrains() bool })
	return ok && c.Constrains()
}

// ErrConstraint is the error for a request with a constraint to a policy that does not support them.
var ErrConstraint = errors.New("policy: only mgrpo's own engine samples under a constraint")

// LeastTemperature is the smallest temperature other than 0 that the kernels accept.
const LeastTemperature = 1e-6

// Check refuses a request that no engine can serve. bytes reports whether the engine has the text of its tokens.
func (r Request) Check(vocabulary int, bytes bool) error {
	s := r.Sampling
	share := func(p float64) bool { return p >= 0 && p <= 1 }
	switch {
	case s.Temperature != 0 && !(s.Temperature >= LeastTemperature && s.Temperature <= math.MaxFloat32):
		return fmt.Errorf("policy: the temperature is %v; it must be 0, which is greedy, or at least %v", s.Temperature, LeastTemperature)
	case s.TopK < 0 || s.TopK > math.MaxInt32 || !share(s.TopP) || !share(s.MinP):
		return fmt.Errorf("policy: top_k %d, top_p %v, min_p %v; want top_k of 0 to %d, and the others from 0 to 1", s.TopK, s.TopP, s.MinP, math.MaxInt32)
	case len(r.Tokens) == 0:
		return errors.New("policy: the prompt is empty; at least one token is needed")
	case s.MaxNew < 1:
		return fmt.Errorf("policy: MaxNew is %d; at least 1 is needed", s.MaxNew)
	case len(s.StopStrings) > 0 && !bytes:
		return errors.New("policy: stop strings need a tokenizer, but this engine does not have one")
	}
	for i, id := range r.Tokens {
		if id < 0 || int(id) >= vocabulary {
			return fmt.Errorf("policy: token %d of the prompt is %d, outside the vocabulary of %d", i, id, vocabulary)
		}
	}
	return nil
}

// Completion is one sampled turn. Tokens and LogProbs have one entry per sampled token.
type Completion struct {
	Tokens   []int32   // sampled ids, including a stop id
	LogProbs []float32 // log-prob under softmax(logits / Temperature), natural log
	Finish   Finish
	Version  int64 // policy version when the turn began; with local.TenantOptions.Overlap later tokens may have newer weights

	// Routes lists the experts through which the tokens of the sequence went, beginning with the first token of the
	// prompt. There are arch.Config.RouteWidth numbers per token, layer by layer, the heaviest expert first. The newest
	// token has none, since it was not computed yet. Empty: unknown, or the model has no experts.
	Routes []uint16
}

// Check refuses a completion that no policy may return for a request of at most `most` new tokens.
func (c Completion) Check(most int) error {
	if len(c.Tokens) != len(c.LogProbs) {
		return fmt.Errorf("the engine returned %d tokens but %d log-probs", len(c.Tokens), len(c.LogProbs))
	}
	if len(c.Tokens) > most {
		return fmt.Errorf("the engine returned %d tokens, but %d were requested", len(c.Tokens), most)
	}
	if len(c.Tokens) == 0 && c.Finish == FinishStop {
		return errors.New("the engine stopped without sampling a token")
	}
	for i, lp := range c.LogProbs {
		if math.IsNaN(float64(lp)) || math.IsInf(float64(lp), 0) || lp > 0 {
			return fmt.Errorf("the log-prob of sampled token %d is %v, but must be a finite number <= 0", i, lp)
		}
	}
	return nil
}

// Sampler samples turns for conversations. Generate may be called from several goroutines; an implementation batches
// concurrent calls. It returns an error if the turn is incomplete (device failure, invalid request); reaching a limit
// is a Finish, not an error. If ctx ends, the error is the cause of ctx, and the completion has FinishCancelled and
// the tokens sampled so far.
type Sampler interface {
	Generate(ctx context.Context, r Request) (Completion, error)
	ContextLimit() int // largest number of tokens of prompt plus completion
}

// Policy samples the turns of one agent, whose weights change between training steps. Its constructor receives access to
// the weights.
type Policy interface {
	Sampler
	Lifecycle
}

// Lifecycle holds the methods that a worker calls between turns.
type Lifecycle interface {
	// UpdateWeights loads the current weights as policy version `version`. Turns that begin after it returns are sampled
	// with them. A policy that cannot change weights under sequences in flight returns an error.
	UpdateWeights(ctx context.Context, version int64) error
	Version() int64 // committed training steps of the weights in use

	// Deterministic reports whether equal requests give bit-equal completions, independently of other requests in flight.
	Deterministic() bool

	Stats() Stats

	// Close fails the requests in flight and frees the policy's memory, but not the weights, which it does not own.
	Close(ctx context.Context) error
}

// Stats counts a policy's work since it was created. An unknown number is 0.
type Stats struct {
	Requests      int64         `json:"requests"`
	PromptTokens  int64         `json:"prompt_tokens"`     // tokens of all prompts, including reused ones
	ReusedTokens  int64         `json:"reused_tokens"`     // prompt tokens whose keys and values were cached
	EvictedTokens int64         `json:"evicted_tokens"`    // tokens whose cached keys and values were evicted
	Recomputed    int64         `json:"recomputed_tokens"` // tokens that went through the model again after their eviction
	PutBack       int64         `json:"put_back"`          // sequences that had to wait in the middle of a turn, because the cache was full
	SampledTokens int64         `json:"sampled_tokens"`
	Passes        int64         `json:"passes"`  // forward passes
	Batches       map[int]int64 `json:"batches"` // passes by number of sequences decoding in them
	MaxInFlight   int           `json:"max_in_flight"`

	// Ranks counts sampled tokens by rank of an agent with several devices; nil: it has one.
	Ranks []int64 `json:"ranks,omitempty"`
}

// Plus returns the sum of the work of two engines. Ranks are s's.
func (s Stats) Plus(t Stats) Stats {
	s.Requests += t.Requests
	s.PromptTokens += t.PromptTokens
	s.ReusedTokens += t.ReusedTokens
	s.EvictedTokens += t.EvictedTokens
	s.Recomputed += t.Recomputed
	s.PutBack += t.PutBack
	s.SampledTokens += t.SampledTokens
	s.Passes += t.Passes
	s.MaxInFlight += t.MaxInFlight
	all := maps.Clone(s.Batches)
	for size, n := range t.Batches {
		if all == nil {
			all = map[int]int64{}
		}
		all[size] += n
	}
	s.Batches = all
	return s
}
