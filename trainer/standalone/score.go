package standalone

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// ScoreOptions are the options of Score.
type ScoreOptions struct {
	Temperature float64                 // > 0
	BatchTokens int                     // tokens of one forward pass; a longer sequence gets a pass of its own
	Progress    func(lines, tokens int) // called with 1 and a line's number of tokens after the line; may be nil
}

// score is the reply of Score.
type score struct {
	ID       json.RawMessage `json:"id,omitempty"`
	IDs      []int32         `json:"ids,omitempty"` // present if the line gave text
	LogProbs []float32       `json:"logprobs"`
	Entropy  []float32       `json:"entropy"`
}

// headRows is the number of rows of logits in memory at once.
const headRows = 512

// Score answers every line of r, {"ids"|"text"}, with {"logprobs","entropy"}. For each id except the first
// they are its log-prob under softmax(logits / temperature) given the ids before it, and the entropy of
// that distribution, in nats. Lines that have already arrived share a forward pass, packed without
// padding. Score returns an error if reading, writing or the device fails; the Tally counts refused lines.
func (c *Checkpoint) Score(ctx context.Context, opt ScoreOptions, r io.Reader, w io.Writer) (Tally, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if opt.Progress == nil {
		opt.Progress = func(int, int) {}
	}
	lines, ended := readLines(ctx, r, 64)
	s := scorer{checkpoint: c, opt: opt}
	out := newOutput(w)
	for in, ok := receive(ctx, lines); ok; in, ok = receive(ctx, lines) {
		batch := s.gather(in, lines)
		if err := s.score(ctx, batch); err != nil {
			return out.tally, err
		}
		for _, l := range batch {
			if err := out.write(l.number, l.id, l.reply, l.err); err != nil {
				return out.tally, err
			}
			opt.Progress(1, len(l.ids))
		}
		if err := out.buf.Flush(); err != nil {
			return out.tally, err
		}
	}
	if err := ctx.Err(); err != nil {
		return out.tally, err
	}
	return out.tally, <-ended
}

// scoredLine is one line being scored.
type scoredLine struct {
	parsedLine
	number int
	reply  score
	err    error
}

type scorer struct {
	checkpoint *Checkpoint
	opt        ScoreOptions
}

// gather makes a batch of first and of the lines that have already arrived, up to opt.BatchTokens.
func (s *scorer) gather(first input, lines <-chan input) []*scoredLine {
	batch := []*scoredLine{s.parse(first)}
	tokens := len(batch[0].ids)
	for tokens < s.opt.BatchTokens {
		select {
		case in, ok := <-lines:
			if !ok {
				return batch
			}
			l := s.parse(in)
			batch = append(batch, l)
			tokens += len(l.ids)
		default:
			return batch
		}
	}
	return batch
}

func (s *scorer) parse(in input) *scoredLine {
	l := &scoredLine{number: in.number}
	l.parsedLine, l.err = parseLine(s.checkpoint, in, false)
	if limit := s.checkpoint.model.MaxPosition(); l.err == nil && len(l.ids) > limit {
		l.err = fmt.Errorf("%d tokens are more than the context of %d", len(l.ids), limit)
	}
	if l.err != nil {
		l.ids = nil
	}
	return l
}

// score computes the replies of a batch, in order, in forward passes of at most opt.BatchTokens.
func (s *scorer) score(ctx context.Context, batch []*scoredLine) error {
	var packed []*scoredLine
	tokens := 0
	flush := func() error {
		defer func() { packed, tokens = nil, 0 }()
		return s.pass(ctx, packed)
	}
	for _, l := range batch {
		if l.err != nil {
			continue
		}
		if tokens > 0 && tokens+len(l.ids) > s.opt.BatchTokens {
			if err := flush(); err != nil {
				return err
			}
		}
		packed = append(packed, l)
		tokens += len(l.ids)
	}
	return flush()
}

// pass scores lines in one forward pass.
func (s *scorer) pass(ctx context.Context, packed []*scoredLine) error {
	var ids, pos, target, row []int32
	cu := []int32{0}
	for _, l := range packed {
		for t, id := range l.ids {
			if t > 0 {
				target = append(target, id)
				row = append(row, int32(len(ids)-1))
			}
			ids = append(ids, id)
			pos = append(pos, int32(t))
		}
		cu = append(cu, int32(len(ids)))
	}
	logp, entropy := make([]float32, len(row)), make([]float32, len(row))
	if len(row) > 0 {
		err := s.checkpoint.model.Device.Do(ctx, func(sc *torch.Scope) error {
			t, n := int64(len(ids)), int64(len(row))
			in := model.Packed{IDs: sc.FromInt32(ids, t), Pos: sc.FromInt32(pos, t), Cu: sc.FromInt32(cu, int64(len(cu)))}
			hidden := s.checkpoint.model.Forward(sc, in).IndexSelect(0, sc.FromInt32(row, n))
			lp, en := torch.HeadLogProb(hidden, s.checkpoint.model.Training.Head(), sc.FromInt32(target, n), s.opt.Temperature, headRows)
			lp.Float32s(logp)
			en.Float32s(entropy)
			return nil
		})
		if err != nil {
			return fmt.Errorf("scoring line %d: %w", packed[0].number, err)
		}
	}
	for _, l := range packed {
		n := len(l.ids) - 1
		l.reply = score{ID: l.id, LogProbs: logp[:n:n], Entropy: entropy[:n:n]}
		if l.text {
			l.reply.IDs = l.ids
		}
		logp, entropy = logp[n:], entropy[n:]
	}
	return nil
}
