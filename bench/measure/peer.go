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
// on a GPU use the packages of the machine's Python.
const PeerSite = "build/peers"

// Host is one Python process for all peers of a suite. It is used on a GPU, because importing torch and opening the device take longer
// than most rows. On a CPU each provider has its own process, whose memory is measured.
type Host struct{ process *process }

// Close ends the process, if one was started.
func (h *Host) Close() error {
	if h == nil || h.process == nil {
		return nil
	}
	return h.process.end()
}

// Peer returns a provider in a Python process. The process lives as long as the provider or the host.
//
// The process is bench/peers/serve.py. It reads requests and writes replies, one JSON object a line. "work" is the number of a provider:
//
//	{"op": "prepare", "work": W, "case": {...}, "provider": NAME, "device": "cpu", "threads": N, "evict": BYTES}
//	                          {"ok": true, "version": ..., "settings": {...}} or {"ok": false, "why": ...}
//	{"op": "run", "work": W, "repeat": N, "cache": "hot"}   {"seconds": [...], "peak_extra_bytes": ...}
//	{"op": "check", "work": W}                              {"max_error": ...}
//	{"op": "close", "work": W}                              {"ok": true}
//
// A reply with "why" is a failure. The process ends when its input ends.
func (o Options) Peer(provider string, workload any) Opener {
	return Opener{Name: provider, Open: func(ctx context.Context) (Provider, Setup, error) {
		peer, err := o.start(ctx)
		if err != nil {
			return nil, Setup{}, err
		}
		var answer struct {
			OK bool `json:"ok"`
			Setup
		}
		err = peer.ask(map[string]any{"op": "prepare", "case": workload, "provider": provider, "device": o.Device, "threads": o.Threads,
			"evict": evictedBytes()}, &answer)
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

// peer is a provider in a process.
type peer struct {
	*process
	number int
	shared bool
}

// process is a running serve.py.
type process struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	log     *bytes.Buffer
	peers   int // started until now
}

// start makes a provider in the host's process, or in a new process.
func (o Options) start(ctx context.Context) (*peer, error) {
	h := o.Host
	if h == nil {
		q, err := o.run(ctx)
		return &peer{process: q}, err
	}
	if h.process == nil || h.process.command.ProcessState != nil {
		q, err := o.run(ctx)
		if err != nil {
			return nil, err
		}
		h.process = q
	}
	h.process.peers++
	return &peer{process: h.process, number: h.process.peers, shared: true}, nil
}

func (o Options) run(ctx context.Context) (*process, error) {
	c := exec.CommandContext(ctx, "python3", filepath.Join(o.Root, "bench", "peers", "serve.py"))
	threads := strconv.Itoa(o.Threads)
	c.Env = append(os.Environ(), "OMP_NUM_THREADS="+threads, "MKL_NUM_THREADS="+threads,
		"HF_HUB_OFFLINE=1", "TRANSFORMERS_VERBOSITY=error", "TOKENIZERS_PARALLELISM=false")
	if o.Device == "cpu" {
		site, err := filepath.Abs(filepath.Join(o.Root, PeerSite))
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(site); err != nil {
			return nil, fmt.Errorf("%s is not there: make bench-peers", PeerSite)
		}
		c.Env = append(c.Env, "PYTHONPATH="+site)
	}
	q := &process{command: c, log: new(bytes.Buffer)}
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

// ask sends a request and reads the reply.
func (q *peer) ask(request map[string]any, answer any) error {
	request["work"] = q.number
	line, err := json.Marshal(request)
	if err != nil {
		return err
	}
	if _, err = q.in.Write(append(line, '\n')); err != nil {
		return q.exitError(err)
	}
	if line, err = q.out.ReadBytes('\n'); err != nil {
		return q.exitError(err)
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

// exitError returns the error of a process that does not reply, with the last line of its standard error.
func (q *process) exitError(err error) error {
	q.in.Close()
	waited := q.command.Wait()
	lines := strings.Split(strings.TrimSpace(q.log.String()), "\n")
	return fmt.Errorf("the peer ended (%v, %v): %s", err, waited, lines[len(lines)-1])
}

// end closes the input and waits for the process. If the process had already ended, end returns nil, because a request has already
// returned the error.
func (q *process) end() error {
	if q.command.ProcessState != nil {
		return nil
	}
	q.in.Close()
	if err := q.command.Wait(); err != nil {
		return fmt.Errorf("the peer ended: %w", err)
	}
	return nil
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

// Close frees the provider's memory, and ends the process if no host owns it.
func (q *peer) Close() error {
	if !q.shared {
		return q.end()
	}
	if q.command.ProcessState != nil {
		return nil
	}
	return q.ask(map[string]any{"op": "close"}, &struct{}{})
}
