package verify

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
)

// encodeNumbers encodes an answer of numbers as them.
func encodeNumbers(_, answer string) (tokens []int32, err error) {
	for word := range strings.FieldsSeq(answer) {
		n, err := strconv.Atoi(word)
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, int32(n))
	}
	return tokens, nil
}

// blockingModule is a module whose score is an answer's first token in eighths. It waits for release before each batch.
type blockingModule struct {
	release chan struct{}
	batches []int
	closed  bool
}

var errModule = errors.New("forward expects three arguments")

func (m *blockingModule) Score(_ context.Context, batch [][]int32) ([]float32, error) {
	<-m.release
	m.batches = append(m.batches, len(batch))
	scores := make([]float32, len(batch))
	for i, tokens := range batch {
		switch tokens[0] {
		case 98:
			scores[i] = float32(math.NaN())
		case 99:
			return nil, errModule
		default:
			scores[i] = float32(tokens[0]) / 8
		}
	}
	return scores, nil
}

func (m *blockingModule) Close() error { m.closed = true; return nil }

func openCounting(t *testing.T) (*blockingModule, *moduleVerifier) {
	t.Helper()
	m := &blockingModule{release: make(chan struct{}, 100)}
	SetModuleOpener(func(string, string, int) (Module, error) { return m, nil })
	t.Cleanup(func() { SetModuleOpener(nil) })
	v, err := New(Options{Kind: TorchScript, TorchScript: TorchScriptOptions{Path: "scorer.pt", MaxTokens: 2, Encode: encodeNumbers}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Close(v) })
	return m, v.(*moduleVerifier)
}

// Answers that come in while a batch is scored make up the next one; each gets its own score.
func TestModuleScoresInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, v := openCounting(t)
		for i := range 8 {
			go func() {
				if got, err := v.Score(t.Context(), caseOf(strconv.Itoa(i), nil, "")); err != nil || got != float64(i)/8 {
					t.Errorf("answer %d: %v, %v", i, got, err)
				}
			}()
			if i == 0 {
				synctest.Wait() // the module has a batch of this answer
			}
		}
		for range 2 {
			synctest.Wait() // the module has a batch, all others wait
			m.release <- struct{}{}
		}
		synctest.Wait()
		if !slices.Equal(m.batches, []int{1, 7}) {
			t.Errorf("batches of %v", m.batches)
		}
	})
}

// If the module refuses a batch, only the answer at fault is refused, because the composition of a batch is chance.
func TestModuleRefusesOneAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, v := openCounting(t)
		for _, answer := range []string{"1", "2", "99", "3"} {
			go func() {
				if _, err := v.Score(t.Context(), caseOf(answer, nil, "")); (err != nil) != (answer == "99") {
					t.Errorf("answer %s: %v", answer, err)
				}
			}()
			if answer == "1" {
				synctest.Wait() // the module has it, all others make up the next batch
			}
		}
		synctest.Wait()
		for range 5 { // two batches, and the second again one by one
			m.release <- struct{}{}
		}
		synctest.Wait()
	})
}

func TestModuleErrors(t *testing.T) {
	m, v := openCounting(t)
	for answer, want := range map[string]string{
		"98": "NaN is not a number from 0 to 1", "9": "1.125 is not a number from 0 to 1", "99": errModule.Error(),
		"1 2 3": "3 tokens, but must have 1 to max_tokens, 2", "": "0 tokens", "x": "invalid syntax",
	} {
		m.release <- struct{}{}
		if got, err := v.Score(t.Context(), caseOf(answer, nil, "")); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "scorer.pt") {
			t.Errorf("%q: %v, %v; want %q", answer, got, err, want)
		}
	}
	Close(v)
	if _, err := v.Score(t.Context(), caseOf("1", nil, "")); err == nil || !m.closed || Close(v) != nil {
		t.Errorf("after Close: %v, module closed: %v", err, m.closed)
	}
	SetModuleOpener(nil)
	if _, err := New(Options{Kind: TorchScript}); err == nil || !strings.Contains(err.Error(), "gotch") {
		t.Errorf("without gotch: %v", err)
	}
}

// A server opens the module only for the answers that it scores, on the device of the agent that gave them.
func TestModuleOnTheAgentsDevices(t *testing.T) {
	var opened []string
	open := map[string]*blockingModule{}
	SetModuleOpener(func(path, device string, threads int) (Module, error) {
		opened = append(opened, fmt.Sprintf("%s on %s with %d threads", path, device, threads))
		if device == "cuda:7" {
			return (*blockingModule)(nil), errors.New("there is no cuda:7")
		}
		open[device] = &blockingModule{release: make(chan struct{}, 100)}
		open[device].release <- struct{}{}
		return open[device], nil
	})
	defer SetModuleOpener(nil)
	devices := map[string]string{"planner": "cpu", "critic": "cpu", "searcher": "cuda:1", "lost": "cuda:7"}
	v, err := New(Options{Kind: TorchScript, TorchScript: TorchScriptOptions{Path: "scorer.pt", MaxTokens: 2, Encode: encodeNumbers,
		Threads: 3, Device: func(agent string) string { return devices[agent] }}})
	if err != nil || len(opened) != 0 {
		t.Fatalf("opened before the first answer: %v, %v", opened, err)
	}
	defer Close(v)
	for _, agent := range []string{"planner", "searcher", "lost", "lost"} {
		c := caseOf("4", nil, "")
		c.Attempt.Agent = agent
		got, err := v.Score(t.Context(), c)
		if agent == "lost" {
			if err == nil || !strings.Contains(err.Error(), "there is no cuda:7") {
				t.Errorf("on a device that is not there: %v, %v", got, err)
			}
		} else if err != nil || got != 0.5 {
			t.Errorf("%s: %v, %v", agent, got, err)
		}
	}
	open["cpu"].release <- struct{}{}
	c := caseOf("2", nil, "")
	c.Attempt.Agent = "critic"
	if got, err := v.Score(t.Context(), c); err != nil || got != 0.25 || len(open["cpu"].batches) != 2 {
		t.Errorf("two agents on one device: %v, %v, batches %v", got, err, open["cpu"].batches)
	}
	if want := []string{"scorer.pt on cpu with 3 threads", "scorer.pt on cuda:1 with 3 threads", "scorer.pt on cuda:7 with 3 threads"}; !slices.Equal(opened, want) {
		t.Errorf("opened %v; want %v", opened, want)
	}
	if err := Close(v); err != nil || !open["cpu"].closed || !open["cuda:1"].closed {
		t.Errorf("Close: %v, %+v", err, open)
	}
}
