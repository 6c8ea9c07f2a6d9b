package verify

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// TorchScriptOptions configure a TorchScript module that scores answers. docs/verifiers.md describes its signature.
type TorchScriptOptions struct {
	Path      string
	Encode    func(question, answer string) ([]int32, error) // returns the module's input tokens
	MaxTokens int                                            // largest number of tokens of a question with its answer
	// Returns the device that scores an agent's answers: cpu, cuda or cuda:N; nil: the CPU.
	Device  func(agent string) string
	Threads int // CPU threads on each device; 0: 1
}

// Module scores batches of token sequences, one batch at a time.
type Module interface {
	Score(ctx context.Context, batch [][]int32) ([]float32, error)
	Close() error
}

// ModuleOpener opens a TorchScript module on a device: cpu, cuda or cuda:N.
type ModuleOpener func(path, device string, threads int) (Module, error)

var openModule ModuleOpener

// SetModuleOpener sets the function that opens TorchScript modules. Package withgotch calls it.
func SetModuleOpener(open ModuleOpener) { openModule = open }

// maxBatch is the largest batch of answers for a module.
const maxBatch = 32

// moduleVerifier has one copy of the module on each device. It opens a copy for the first answer on its device, so a
// server has no module for the answers that other servers score.
type moduleVerifier struct {
	opt  TorchScriptOptions
	open ModuleOpener

	mu     sync.Mutex
	copies map[string]*moduleCopy // by device
	ctx    context.Context
	end    context.CancelFunc
	served sync.WaitGroup
}

// moduleCopy batches the answers that arrive while the module scores the previous batch.
type moduleCopy struct {
	asked  chan *moduleCase
	ctx    context.Context
	closed error // error of closing the module
}

type moduleCase struct {
	tokens []int32
	done   chan scoreResult // has room for one result
}

func newTorchScript(s TorchScriptOptions) (Verifier, error) {
	if openModule == nil {
		return nil, errors.New("verifier: torchscript: this program was built without gotch, which runs TorchScript modules: use bin/mgrpo, or import " +
			"trainer/withgotch")
	}
	if s.Device == nil {
		s.Device = func(string) string { return "cpu" }
	}
	s.Threads = max(s.Threads, 1)
	v := &moduleVerifier{opt: s, open: openModule, copies: map[string]*moduleCopy{}}
	v.ctx, v.end = context.WithCancel(context.Background())
	return v, nil
}

// Score returns the module's score. A score outside [0,1] is an error.
func (v *moduleVerifier) Score(ctx context.Context, c Case) (float64, error) {
	tokens, err := v.opt.Encode(c.Question(), c.Attempt.Answer)
	if err == nil && (len(tokens) == 0 || len(tokens) > v.opt.MaxTokens) {
		err = fmt.Errorf("question and answer have %d tokens, but must have 1 to max_tokens, %d", len(tokens), v.opt.MaxTokens)
	}
	if err != nil {
		return 0, fmt.Errorf("verifier: torchscript %s: %w", v.opt.Path, err)
	}
	r := v.copyOn(v.opt.Device(c.Attempt.Agent)).ask(ctx, tokens)
	if r.err == nil && !(r.score >= 0 && r.score <= 1) {
		r.err = fmt.Errorf("the score %v is not a number from 0 to 1: end the module with a function to [0,1], such as a sigmoid", float32(r.score))
	}
	if r.err != nil {
		return 0, fmt.Errorf("verifier: torchscript %s: %w", v.opt.Path, r.err)
	}
	return r.score, nil
}

// copyOn returns the copy of the module on a device.
func (v *moduleVerifier) copyOn(device string) *moduleCopy {
	v.mu.Lock()
	defer v.mu.Unlock()
	m := v.copies[device]
	if m == nil {
		m = &moduleCopy{asked: make(chan *moduleCase), ctx: v.ctx}
		if v.ctx.Err() == nil {
			v.copies[device] = m
			v.served.Go(func() { m.serve(v.open, v.opt, device) })
		}
	}
	return m
}

// Close waits for the batches that are being scored and frees the module.
func (v *moduleVerifier) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.end()
	v.served.Wait()
	var errs []error
	for _, m := range v.copies {
		errs = append(errs, m.closed)
	}
	clear(v.copies)
	return errors.Join(errs...)
}

// ask waits for the score of an answer.
func (m *moduleCopy) ask(ctx context.Context, tokens []int32) scoreResult {
	mine := &moduleCase{tokens: tokens, done: make(chan scoreResult, 1)}
	select {
	case m.asked <- mine:
		return <-mine.done
	case <-ctx.Done():
		return scoreResult{err: ctx.Err()}
	case <-m.ctx.Done():
		return scoreResult{err: errClosed}
	}
}

// serve opens the module, scores batches until the verifier is closed, and closes the module. If the module cannot be
// opened, no answer gets a score.
func (m *moduleCopy) serve(open ModuleOpener, s TorchScriptOptions, device string) {
	module, failed := open(s.Path, device, s.Threads)
	score := func([][]int32) ([]float32, error) { return nil, failed }
	if failed == nil {
		score = func(batch [][]int32) ([]float32, error) { return module.Score(m.ctx, batch) }
		defer func() { m.closed = module.Close() }()
	}
	for {
		var batch []*moduleCase
		select {
		case first := <-m.asked:
			batch = append(batch, first)
		case <-m.ctx.Done():
			return
		}
		for waiting := true; waiting && len(batch) < maxBatch; {
			select {
			case c := <-m.asked:
				batch = append(batch, c)
			default:
				waiting = false
			}
		}
		m.distribute(batch, score)
	}
}

// distribute scores a batch and gives each of its answers its score.
func (m *moduleCopy) distribute(batch []*moduleCase, score func([][]int32) ([]float32, error)) {
	tokens := make([][]int32, len(batch))
	for i, c := range batch {
		tokens[i] = c.tokens
	}
	scores, err := score(tokens)
	if err != nil && len(batch) > 1 && m.ctx.Err() == nil {
		for i := range batch { // one answer may have made the whole batch fail
			m.distribute(batch[i:i+1], score)
		}
		return
	}
	for i, c := range batch {
		if err != nil {
			c.done <- scoreResult{err: err}
		} else {
			c.done <- scoreResult{score: float64(scores[i])}
		}
	}
}
