package measure

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// PeerSite is the folder of the peers' Python packages, relative to the root of the repository: make bench-peers. Peers
// on a GPU use what the machine's Python has.
const PeerSite = "build/peers"

// Peers says how Python providers are started and where they compute. Root is the repository's.
type Peers struct {
	Root    string
	Device  string
	Threads int
}

// Opener is a peer in a Python process of its own, which lives as long as the provider.
//
// The process is bench/peers/serve.py. One JSON object a line goes in and one comes out:
//
//	{"op": "prepare", "case": {...}, "provider": NAME, "device": "cpu", "threads": N}
//	                          {"ok": true, "version": ..., "settings": {...}} or {"ok": false, "why": ...}
//	{"op": "run", "repeat": N, "cache": "hot"}   {"seconds": [...], "peak_extra_bytes": ...}
//	{"op": "check"}                              {"max_error": ...}
//	{"op": "close"}                              the process ends
//
// An answer with "why" instead is a failure.
func (p Peers) Opener(provider string, workload any) Opener {
	return Opener{Name: provider, Open: func(ctx context.Context) (Provider, Setup, error) {
		peer, err := p.start(ctx)
		if err != nil {
			return nil, Setup{}, err
		}
		var answer struct {
			OK bool `json:"ok"`
			Setup
		}
		err = peer.ask(map[string]any{"op": "prepare", "case": workload, "provider": provider, "device": p.Device, "threads": p.Threads}, &answer)
		if err == nil && !answer.OK {
			err = errors.New("prepare was not answered with ok")
		}
		if err != nil {
			peer.Close()
			return nil, Setup{}, err
		}
		return peer, answer.Setup, nil
	}}
}

type peer struct {
	process *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	log     *bytes.Buffer
}

func (p Peers) start(ctx context.Context) (*peer, error) {
	c := exec.CommandContext(ctx, "python3", filepath.Join(p.Root, "bench", "peers", "serve.py"))
	threads := strconv.Itoa(p.Threads)
	c.Env = append(os.Environ(), "OMP_NUM_THREADS="+threads, "MKL_NUM_THREADS="+threads,
		"HF_HUB_OFFLINE=1", "TRANSFORMERS_VERBOSITY=error", "TOKENIZERS_PARALLELISM=false")
	if p.Device == "cpu" {
		site, err := filepath.Abs(filepath.Join(p.Root, PeerSite))
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(site); err != nil {
			return nil, fmt.Errorf("%s is not there: make bench-peers", PeerSite)
		}
		c.Env = append(c.Env, "PYTHONPATH="+site)
	}
	q := &peer{process: c, log: new(bytes.Buffer)}
	c.Stderr = q.log
	var err error
	if q.in, err = c.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	q.out = bufio.NewReader(out)
	return q, c.Start()
}

// ask sends a request and reads its answer.
func (q *peer) ask(request, answer any) error {
	line, err := json.Marshal(request)
	if err != nil {
		return err
	}
	if _, err = q.in.Write(append(line, '\n')); err != nil {
		return q.gone(err)
	}
	if line, err = q.out.ReadBytes('\n'); err != nil {
		return q.gone(err)
	}
	var failed struct {
		Why string `json:"why"`
	}
	if err := json.Unmarshal(line, &failed); err != nil {
		return fmt.Errorf("the peer answered %.200q: %w", line, err)
	}
	if failed.Why != "" {
		return errors.New(failed.Why)
	}
	return json.Unmarshal(line, answer)
}

// gone is the error of a peer that does not answer: it carries the last line that the peer wrote to its standard error.
func (q *peer) gone(err error) error {
	q.in.Close()
	waited := q.process.Wait()
	lines := strings.Split(strings.TrimSpace(q.log.String()), "\n")
	return fmt.Errorf("the peer ended (%v, %v): %s", err, waited, lines[len(lines)-1])
}

func (q *peer) Run(_ context.Context, repeat int, cache Cache) (Samples, error) {
	var answer struct {
		Seconds        []float64 `json:"seconds"`
		PeakExtraBytes int64     `json:"peak_extra_bytes"`
	}
	err := q.ask(map[string]any{"op": "run", "repeat": repeat, "cache": cache}, &answer)
	if err == nil && len(answer.Seconds) != repeat {
		err = fmt.Errorf("the peer gave %d samples for %d", len(answer.Seconds), repeat)
	}
	return Samples{answer.Seconds, answer.PeakExtraBytes}, err
}

func (q *peer) Check(context.Context) (float64, error) {
	var answer struct {
		MaxError *float64 `json:"max_error"`
	}
	if err := q.ask(map[string]any{"op": "check"}, &answer); err != nil {
		return 0, err
	}
	if answer.MaxError == nil {
		return 0, errors.New("the peer gave no max_error")
	}
	return *answer.MaxError, nil
}

// Close ends the process. A process that has ended before is no error here: its unanswered request was one.
func (q *peer) Close() error {
	if q.process.ProcessState != nil {
		return nil
	}
	fmt.Fprintln(q.in, `{"op": "close"}`)
	q.in.Close()
	if err := q.process.Wait(); err != nil {
		return fmt.Errorf("the peer ended: %w", err)
	}
	return nil
}
