package standalone

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// GenerateOptions are the options of Generate.
type GenerateOptions struct {
	Sampling policy.Sampling // if it has no StopIDs, a turn ends at Checkpoint.StopIDs
	Seed     uint64
	InFlight int // number of lines in progress; 0 means 1; should exceed the engine's slots, so that no slot is idle

	// Progress is called with 1, 0 after each line and with 0, 1 for each sampled token, by several goroutines; it may be nil.
	Progress func(lines, tokens int)
}

// completion is the reply of Generate.
type completion struct {
	ID           json.RawMessage `json:"id,omitempty"`
	IDs          []int32         `json:"ids"`
	Text         *string         `json:"text,omitempty"` // absent without a tokenizer
	LogProbs     []float32       `json:"logprobs"`
	FinishReason policy.Finish   `json:"finish_reason"`
}

// Generate continues the prompt of every line of r: for {"ids"|"text"|"messages"} it writes {"ids", "text", "logprobs",
// "finish_reason"} of the sampled tokens. The ids include a stop token; the text omits all special tokens. A line's "id" is
// copied to its reply. On a CPU, with a model that computes rows independently and with equal settings, a reply depends on the line
// number, the seed and the prompt alone. Generate returns an error if reading, writing or the engine fails; the Tally counts refused
// lines.
func (c *Checkpoint) Generate(ctx context.Context, engine policy.Sampler, opt GenerateOptions, r io.Reader, w io.Writer) (Tally, error) {
	ctx, cancel := context.WithCancel(ctx)
	var calls sync.WaitGroup
	defer calls.Wait()
	defer cancel()
	if opt.Sampling.StopIDs == nil {
		opt.Sampling.StopIDs = c.StopIDs()
	}
	if opt.Progress == nil {
		opt.Progress = func(int, int) {}
	}
	g := generator{c, engine, opt}
	lines, ended := readLines(ctx, r, 0)
	pending := make(chan chan answer, max(opt.InFlight-1, 0))
	calls.Go(func() {
		defer close(pending)
		for {
			in, ok := receive(ctx, lines)
			if !ok {
				return
			}
			reply := make(chan answer, 1)
			select {
			case pending <- reply:
			case <-ctx.Done():
				return
			}
			calls.Go(func() { reply <- g.answer(ctx, in) })
		}
	})
	out := newOutput(w)
	for reply := range pending {
		a := <-reply
		if err := ctx.Err(); err != nil {
			return out.tally, err
		}
		if a.fatal != nil {
			return out.tally, a.fatal
		}
		if err := out.write(a.line, a.id, a.completion, a.err); err != nil {
			return out.tally, err
		}
		opt.Progress(1, 0)
		if len(pending) == 0 {
			if err := out.buf.Flush(); err != nil {
				return out.tally, err
			}
		}
	}
	if err := out.buf.Flush(); err != nil {
		return out.tally, err
	}
	if err := ctx.Err(); err != nil {
		return out.tally, err
	}
	return out.tally, <-ended
}

// answer is the state of one line.
type answer struct {
	line       int
	id         json.RawMessage
	completion completion
	err        error // refuses this line
	fatal      error // ends Generate: the engine failed
}

type generator struct {
	checkpoint *Checkpoint
	engine     policy.Sampler
	opt        GenerateOptions
}

func (g generator) answer(ctx context.Context, in input) answer {
	a := answer{line: in.number}
	q, err := parseLine(g.checkpoint, in, true)
	a.id, a.err = q.id, err
	if err != nil {
		return a
	}
	if limit := g.engine.ContextLimit(); len(q.ids) >= limit {
		a.err = fmt.Errorf("a prompt of %d tokens leaves no room in a context of %d", len(q.ids), limit)
		return a
	}
	c, err := g.engine.Generate(ctx, policy.Request{Tokens: q.ids, Sampling: g.opt.Sampling,
		Key:     policy.Key{RunSeed: g.opt.Seed, Query: fmt.Sprintf("line-%d", in.number)},
		OnToken: func(int32) { g.opt.Progress(0, 1) }})
	if err != nil {
		a.fatal = fmt.Errorf("line %d: %w", in.number, err)
		return a
	}
	a.completion = completion{ID: q.id, IDs: c.Tokens, LogProbs: c.LogProbs, FinishReason: c.Finish}
	if g.checkpoint.Tokenizer != nil {
		a.completion.Text = new(g.checkpoint.text(c.Tokens, g.opt.Sampling.StopIDs))
	}
	return a
}
