// Package policy turns tokens into more tokens: a Policy continues a prompt with samples and reports, for
// each sampled token, the log-prob that the sampled distribution gave it. The folders below hold what
// implements it (local) and what uses it without training (chat, jsonl, standalone).
package policy

import "context"

// Key names one sampled turn of a run. Together with the absolute position of a token in its sequence
// it is the counter of the Philox generator, so a token's random number depends on what is sampled and
// never on when or beside what it is sampled.
type Key struct {
	RunSeed    uint64 // seed of the whole run
	Step       int64  // training step the rollout belongs to
	Query      string // query id, epoch included
	Rollout    int    // k: which of the K attempts at the query
	Agent      string // agent's name
	Invocation int    // i-th call of this agent within the rollout; 0 for the main agent
}

// Sampling says how tokens are drawn and when a turn ends. Training samples with Temperature alone;
// TopK, TopP and MinP are for generation and evaluation.
type Sampling struct {
	Temperature float64  // tau > 0; 0 is greedy
	TopK        int      // keep the k likeliest tokens; 0 is off
	TopP        float64  // nucleus mass in (0,1); 0 or 1 is off
	MinP        float64  // keep tokens with p >= MinP * max p; 0 is off
	MaxNew      int      // most tokens to sample in this turn; at least 1
	StopIDs     []int32  // sampling one of these ends the turn; it is part of the completion
	StopStrings []string // decoded text of the turn containing one of these ends the turn
}

// Finish says why a completion ended.
type Finish string

const (
	FinishStop      Finish = "stop"      // a stop id was sampled or a stop string appeared
	FinishLength    Finish = "length"    // MaxNew tokens were sampled
	FinishContext   Finish = "context"   // the model's context limit was reached
	FinishCancelled Finish = "cancelled" // the caller's context ended; the tokens are a prefix
)

// Request asks for one turn: Tokens is everything before it (prompt, earlier turns, observations).
type Request struct {
	Tokens   []int32
	Sampling Sampling
	Key      Key

	// OnToken, if set, is called with each sampled token, in order, before Generate returns. It runs on the
	// engine's goroutine: it must neither block nor call the engine.
	OnToken func(id int32)
}

// Completion is one sampled turn. The three slices have equal length: one entry a sampled token.
type Completion struct {
	Tokens            []int32   // sampled ids, a sampled stop id included
	LogProbs          []float32 // log-prob under softmax(logits / Temperature), natural log
	TruncatedLogProbs []float32 // log-prob under the distribution left by TopK, TopP and MinP
	Finish            Finish
	Version           int64 // policy version that sampled every token of the turn
}

// Sampler is what a conversation needs of a policy. Generate may be called from any number of goroutines;
// concurrent calls are batched. An error means that no whole turn exists (device failure, invalid request);
// running into a limit is a Finish, not an error. If ctx ends, the error is its cause and the completion, with
// FinishCancelled, holds what was sampled until then.
type Sampler interface {
	Generate(ctx context.Context, r Request) (Completion, error)
	ContextLimit() int // most tokens of prompt plus completion
}

// Policy samples the turns of one agent, whose weights change between training steps. It is made with the
// place from which it takes the weights.
type Policy interface {
	Sampler

	// UpdateWeights takes the weights as they are now and calls them version. When it returns, every turn that begins
	// later is sampled with them. A policy that cannot change weights under sequences in flight refuses to.
	UpdateWeights(ctx context.Context, version int64) error
	Version() int64 // committed training steps of the weights in use

	// Deterministic says whether equal requests have equal answers, bit for bit, whatever else is in flight.
	Deterministic() bool

	Stats() Stats

	// Close fails what is in flight and frees what the policy allocated; the weights are not its own.
	Close(ctx context.Context) error
}

// Stats counts what a policy did since it was made. A policy that does not know a number leaves it 0.
type Stats struct {
	Requests      int64         `json:"requests"`
	PromptTokens  int64         `json:"prompt_tokens"` // tokens of all prompts, reused ones included
	ReusedTokens  int64         `json:"reused_tokens"` // prompt tokens whose keys and values were cached
	SampledTokens int64         `json:"sampled_tokens"`
	Passes        int64         `json:"passes"`  // forward passes
	Batches       map[int]int64 `json:"batches"` // passes by number of sequences decoding in them
	MaxInFlight   int           `json:"max_in_flight"`
}
