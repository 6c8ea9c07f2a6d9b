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
	"maps"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/mgrpo/mgrpo/trainer/show/metrics"
)

//go:embed forward.py
var wandbScript string

// maxAnswer is the length in bytes of the longest line that the Python process may answer with.
const maxAnswer = 4 << 10

// wandb is a run at Weights & Biases. A Python process with the wandb client writes it. A Row becomes a step of the W&B
// run.
type wandb struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	next int64 // first row that W&B does not have yet
}

// WandB returns an Opener for a project of Weights & Biases. python is the name or path of a Python that has the package
// wandb. Everything else is set by the client's own environment variables, such as WANDB_API_KEY, WANDB_ENTITY and
// WANDB_MODE.
//
// Offline, the client does not have access to the rows that it wrote before, and would append a second folder to the first
// one on the server: write a run offline only once.
func WandB(project, python string) Opener {
	return func(ctx context.Context, run Run) (Tracker, error) {
		w := &wandb{cmd: exec.Command(python, "-c", wandbScript)}
		w.cmd.Env = wandbEnv(run, project)
		w.cmd.Stderr = os.Stderr
		// Ctrl-C must reach this process only: the client still delivers the rows that it has received.
		w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := w.start(ctx, run.Params); err != nil {
			return nil, fmt.Errorf("W&B: %w", err)
		}
		return w, nil
	}
}

// wandbEnv returns this process's environment, with settings of the client that are not set there.
func wandbEnv(run Run, project string) []string {
	env := append(os.Environ(), "WANDB_PROJECT="+project, "PYTHONSAFEPATH=1", "PYTHONUNBUFFERED=1")
	for _, setting := range []string{
		"WANDB_RUN_ID=" + run.ID, "WANDB_RESUME=allow", "WANDB_NAME=" + run.Name, "WANDB_RUN_GROUP=" + run.Name,
		"WANDB_DIR=" + run.Dir,
		// The output and resource use of this process are not those of the run.
		"WANDB_CONSOLE=off", "WANDB_DISABLE_GIT=true", "WANDB_DISABLE_CODE=true", "WANDB_X_DISABLE_STATS=true",
	} {
		name, _, _ := strings.Cut(setting, "=")
		if _, set := os.LookupEnv(name); !set {
			env = append(env, setting)
		}
	}
	return env
}

// start starts the process and reads its answer. Until the answer arrives, the end of ctx kills the process.
func (w *wandb) start(ctx context.Context, params map[string]string) error {
	in, err := w.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	w.in = in
	if err := w.cmd.Start(); err != nil {
		return fmt.Errorf("%w; --python names the Python that has the package wandb", err)
	}
	defer context.AfterFunc(ctx, w.kill)()
	_ = w.send(tree(params)) // if this fails, the process does not answer either
	if err := w.answer(out); err != nil {
		w.kill()
		_ = w.end()
		return cmp.Or(ctx.Err(), err)
	}
	return nil
}

func (w *wandb) kill() { _ = syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL) }

// answer reads the number of the next row. It returns an error if the process ends without an answer.
func (w *wandb) answer(out io.Reader) error {
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
	w.next = *answer.Next
	return nil
}

// send writes a line to the process.
func (w *wandb) send(v any) error {
	line, err := json.Marshal(v)
	if err == nil {
		_, err = w.in.Write(append(line, '\n'))
	}
	return err
}

// end closes the process's input, and waits until it has delivered everything and ended.
func (w *wandb) end() error {
	if w.in == nil {
		return nil
	}
	_ = w.in.Close()
	w.in = nil
	if err := w.cmd.Wait(); err != nil {
		return fmt.Errorf("the client's Python process: %w", err)
	}
	return nil
}

// Log implements Tracker.
func (w *wandb) Log(_ context.Context, rows []Row) error {
	for _, r := range rows {
		if r.Index < w.next {
			continue
		}
		if err := w.send(wandbRow(r)); err != nil {
			return fmt.Errorf("W&B: %w", errors.Join(err, w.end()))
		}
	}
	return nil
}

// Close implements Tracker. W&B shows every run whose client has ended as finished, until another client continues it.
func (w *wandb) Close(context.Context, bool) error {
	if err := w.end(); err != nil {
		return fmt.Errorf("W&B: not everything was delivered; run the same command again to forward the rest: %w", err)
	}
	return nil
}

// wandbRow returns a row in the form that forward.py reads. The client reads the time of a row from _timestamp.
func wandbRow(r Row) any {
	values := maps.Clone(r.Values)
	values["step"] = float64(r.Step)
	values["_timestamp"] = float64(r.Time.UnixMicro()) / 1e6
	histograms := map[string]any{}
	for name, counts := range r.Histograms {
		if bins, edges := binned(counts); bins != nil {
			histograms[name] = map[string]any{"counts": bins, "edges": edges}
		}
	}
	return map[string]any{"index": r.Index, "values": values, "histograms": histograms}
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

// tree makes nested objects of keys with dots, as W&B shows them.
func tree(params map[string]string) map[string]any {
	root := map[string]any{}
	for key, text := range params {
		at := root
		parts := strings.Split(key, ".")
		for _, part := range parts[:len(parts)-1] {
			next, ok := at[part].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[part] = next
			}
			at = next
		}
		at[parts[len(parts)-1]] = typed(text)
	}
	return root
}

// typed returns a value of the configuration as JSON: a number, a boolean or a text.
func typed(text string) any {
	if json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	return text
}
