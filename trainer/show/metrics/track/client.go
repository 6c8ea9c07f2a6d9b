package track

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"github.com/mgrpo/mgrpo/trainer/show/metrics"
)

//go:embed forward.py
var script string

// maxAnswer is the length in bytes of the longest line that the Python process may answer with.
const maxAnswer = 4 << 10

// process is a run at a tracker. A Python process with the tracker's own client writes it.
type process struct {
	tracker string // also the name of its Python package
	cmd     *exec.Cmd
	in      io.WriteCloser
	next    int64 // first row that the tracker does not have yet
}

// open starts the process of a tracker's client. python is the name or path of a Python that
// has its package. The tracker's client reads run.
func open(ctx context.Context, tracker, python string, env []string, run any) (Tracker, error) {
	p := &process{tracker: tracker, cmd: exec.Command(python, "-c", script, tracker)}
	p.cmd.Env = append(env, "PYTHONSAFEPATH=1", "PYTHONUNBUFFERED=1")
	p.cmd.Stderr = os.Stderr
	// Ctrl-C must reach this process only: the client still delivers the rows that it has received.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.start(ctx, run); err != nil {
		return nil, fmt.Errorf("%s: %w", tracker, err)
	}
	return p, nil
}

// start starts the process and reads its answer. Until the answer arrives, the end of ctx kills the process.
func (p *process) start(ctx context.Context, run any) error {
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p.in = in
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("%w; --python names the Python that has the package %s", err, p.tracker)
	}
	defer context.AfterFunc(ctx, p.kill)()
	_ = p.send(run) // if this fails, the process does not answer either
	if err := p.answer(out); err != nil {
		p.kill()
		_ = p.end()
		return cmp.Or(ctx.Err(), err)
	}
	return nil
}

func (p *process) kill() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

// answer reads the number of the next row. It returns an error if the process ends without an answer.
func (p *process) answer(out io.Reader) error {
	var answer struct {
		Next *int64 `json:"next"`
	}
	text, err := bufio.NewReader(io.LimitReader(out, maxAnswer)).ReadBytes('\n')
	if errors.Is(err, io.EOF) && len(text) == 0 {
		return errors.New("the client did not begin the run; the lines above give the reason")
	}
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	if err != nil || answer.Next == nil || *answer.Next < 0 {
		return fmt.Errorf("the client's Python process answered %.100q instead of the number of the next row", text)
	}
	p.next = *answer.Next
	return nil
}

// send writes a line to the process.
func (p *process) send(v any) error {
	line, err := json.Marshal(v)
	if err == nil {
		_, err = p.in.Write(append(line, '\n'))
	}
	return err
}

// end closes the process's input, and waits until it has delivered everything and ended.
func (p *process) end() error {
	if p.in == nil {
		return nil
	}
	_ = p.in.Close()
	p.in = nil
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("the client's Python process: %w", err)
	}
	return nil
}

// Log implements Tracker.
func (p *process) Log(_ context.Context, rows []Row) error {
	var lacks []any
	for _, r := range rows {
		if r.Index >= p.next {
			lacks = append(lacks, sent(r))
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	if err := p.send(lacks); err != nil {
		return fmt.Errorf("%s: %w", p.tracker, errors.Join(err, p.end()))
	}
	return nil
}

// Close implements Tracker. W&B shows every run whose client has ended as finished, until another client continues it. In MLflow a run
// that is not complete keeps the status running.
func (p *process) Close(_ context.Context, complete bool) error {
	if complete && p.in != nil {
		_ = p.send(true) // if this fails, the process has ended, and end returns its error
	}
	if err := p.end(); err != nil {
		return fmt.Errorf("%s: not everything was delivered; run the same command again to forward the rest: %w", p.tracker, err)
	}
	return nil
}

// sent returns a row in the form that forward.py reads.
func sent(r Row) any {
	histograms := map[string]any{}
	for name, counts := range r.Histograms {
		if bins, edges := binned(counts); bins != nil {
			histograms[name] = map[string]any{"counts": bins, "edges": edges}
		}
	}
	return map[string]any{"index": r.Index, "step": r.Step, "time": float64(r.Time.UnixMicro()) / 1e6, "values": r.Values, "histograms": histograms}
}

// binned distributes counts of integers over bins of equal width. There are at most as many bins as a histogram of W&B may
// have. Bin i is from edges[i] to edges[i+1]. Without counts there are no bins.
func binned(counts map[string]int64) (bins []int64, edges []float64) {
	const most = 512
	keys, byKey := metrics.Integers(counts)
	if len(keys) == 0 {
		return nil, nil
	}
	lowest := keys[0]
	span := uint64(keys[len(keys)-1]) - uint64(lowest) // correct even if the difference overflows an int64
	width := span/most + 1
	bins = make([]int64, span/width+1)
	for _, k := range keys {
		bins[(uint64(k)-uint64(lowest))/width] += byKey[k]
	}
	for i := range len(bins) + 1 {
		edges = append(edges, float64(lowest)-0.5+float64(i)*float64(width))
	}
	return bins, edges
}
