package verify

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// TorchScriptSettings configure a TorchScript module that scores answers. docs/verifiers.md describes its signature.
type TorchScriptSettings struct {
	Path      string
	Encode    func(question, answer string) ([]int32, error) // returns the module's input tokens
	MaxTokens int                                            // most tokens of a question with its answer
}

// Module scores batches of token sequences, one batch at a time.
type Module interface {
	Score(ctx context.Context, batch [][]int32) ([]float32, error)
	Close() error
}

var openModule func(path string) (Module, error)

// SetModuleOpener sets the function that opens TorchScript modules. The program that is built with gotch calls it.
func SetModuleOpener(open func(path string) (Module, error)) { openModule = open }

// maxBatch is the largest batch of answers for a module.
const maxBatch = 32

// moduleVerifier batches the answers that arrive while the module scores the previous batch.
type moduleVerifier struct {
	settings TorchScriptSettings
	module   Module
	asked    chan *moduleCase
	over     context.Context
	end      context.CancelFunc
	served   sync.WaitGroup
	close    func() error
}

type moduleCase struct {
	tokens []int32
	done   chan moduleScore // has room for one result
}

type moduleScore struct {
	score float32
	err   error
}

func newTorchScript(s TorchScriptSettings) (Verifier, error) {
	if openModule == nil {
		return nil, errors.New("verifier: torchscript: this program is built without gotch, which runs TorchScript modules: use bin/mgrpo, or call verify.SetModuleOpener")
	}
	module, err := openModule(s.Path)
	if err != nil {
		return nil, fmt.Errorf("verifier: torchscript: %w", err)
	}
	v := &moduleVerifier{settings: s, module: module, asked: make(chan *moduleCase)}
	v.over, v.end = context.WithCancel(context.Background())
	v.close = sync.OnceValue(func() error {
		v.end()
		v.served.Wait()
		return module.Close()
	})
	v.served.Go(v.serve)
	return v, nil
}

// Score returns the module's score. A score outside [0,1] is an error.
func (v *moduleVerifier) Score(ctx context.Context, c Case) (float64, error) {
	tokens, err := v.settings.Encode(c.Question(), c.Attempt.Answer)
	if err == nil && (len(tokens) == 0 || len(tokens) > v.settings.MaxTokens) {
		err = fmt.Errorf("question and answer have %d tokens; want 1 to max_tokens, %d", len(tokens), v.settings.MaxTokens)
	}
	if err != nil {
		return 0, fmt.Errorf("verifier: torchscript %s: %w", v.settings.Path, err)
	}
	mine := &moduleCase{tokens: tokens, done: make(chan moduleScore, 1)}
	var r moduleScore
	select {
	case v.asked <- mine:
		r = <-mine.done
	case <-ctx.Done():
		r.err = ctx.Err()
	case <-v.over.Done():
		r.err = errors.New("the run is over")
	}
	if r.err == nil && !(r.score >= 0 && r.score <= 1) {
		r.err = fmt.Errorf("the score %v is not a number from 0 to 1: end the module with a function to [0,1], such as a sigmoid", r.score)
	}
	if r.err != nil {
		return 0, fmt.Errorf("verifier: torchscript %s: %w", v.settings.Path, r.err)
	}
	return float64(r.score), nil
}

// serve scores batches until the verifier is closed.
func (v *moduleVerifier) serve() {
	for {
		var batch []*moduleCase
		select {
		case first := <-v.asked:
			batch = append(batch, first)
		case <-v.over.Done():
			return
		}
		for waiting := true; waiting && len(batch) < maxBatch; {
			select {
			case c := <-v.asked:
				batch = append(batch, c)
			default:
				waiting = false
			}
		}
		v.score(batch)
	}
}

func (v *moduleVerifier) score(batch []*moduleCase) {
	tokens := make([][]int32, len(batch))
	for i, c := range batch {
		tokens[i] = c.tokens
	}
	scores, err := v.module.Score(v.over, tokens)
	if err != nil && len(batch) > 1 && v.over.Err() == nil {
		for i := range batch { // one may be at fault for all
			v.score(batch[i : i+1])
		}
		return
	}
	for i, c := range batch {
		if err != nil {
			c.done <- moduleScore{err: err}
		} else {
			c.done <- moduleScore{score: scores[i]}
		}
	}
}

// Close waits for the batch that is being scored and frees the module.
func (v *moduleVerifier) Close() error { return v.close() }
