// Package track forwards the records of a run to an experiment tracker (Weights & Biases, MLflow or TensorBoard).
//
// The Python script forward.py reads the metrics.jsonl of a run, in progress or finished, and sends the records with the
// tracker's own package.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package track

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

//go:embed forward.py
var script string

// pollInterval is the time between two looks for the first record.
const pollInterval = time.Second

// Tracker is an experiment tracker. Its client has environment variables for everything else, such as WANDB_API_KEY and
// MLFLOW_TRACKING_TOKEN.
type Tracker struct {
	Package string // its Python package: wandb, mlflow or tensorboard
	To      string // project of W&B, experiment of MLflow (URI/EXPERIMENT or EXPERIMENT), or folder for TensorBoard
	Python  string // name or path of a Python that has the package
}

// Sum counts lines of metrics.jsonl.
type Sum struct {
	Rows     int64 // records that the tracker has
	Repeated int64 // records of steps that were reported before
	Damaged  int64 // unreadable lines
}

// Forward forwards the records of the run in the folder dir. With follow it waits for further records until the run is
// complete or ctx ends, which is not an error. It also waits for a run that has not begun yet.
func Forward(ctx context.Context, dir string, follow bool, to Tracker) (Sum, error) {
	until, cancel := context.WithCancel(ctx)
	defer cancel()
	if !follow {
		cancel()
	}
	began, err := awaitFirstRecord(until, dir)
	switch {
	case began:
		return to.forward(ctx, until, dir, false)
	case follow && (err == nil || errors.Is(err, fs.ErrNotExist)):
		return Sum{}, nil
	case err == nil:
		err = fmt.Errorf("%s does not contain a finished step or evaluation yet; --follow waits for them", dir)
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("%w: give the folder of a run, such as runs/NAME", err)
	}
	return Sum{}, err
}

// awaitFirstRecord waits for the first record of a run. The run has then written its configuration. It returns false if there is no record
// when until ends.
func awaitFirstRecord(until context.Context, dir string) (bool, error) {
	for {
		last := until.Err() != nil // records that were written before are still read
		log, err := metrics.Read(dir)
		if last || len(log.Records) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err == nil && len(log.Records) > 0, err
		}
		select {
		case <-until.Done():
		case <-time.After(pollInterval):
		}
	}
}

// forward runs the script. It forwards all records that the file has when until ends. The end of ctx kills a client that has not
// begun the run yet. more means that a complete run may be continued until then.
func (t Tracker) forward(ctx, until context.Context, dir string, more bool) (Sum, error) {
	run, env, err := t.describe(dir, more)
	if err != nil {
		return Sum{}, err
	}
	cmd := exec.Command(t.Python, "-c", script)
	cmd.Env = append(env, "PYTHONSAFEPATH=1", "PYTHONUNBUFFERED=1")
	cmd.Stderr = os.Stderr
	// Ctrl-C must reach this process only: the client still delivers the records.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return Sum{}, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return Sum{}, err
	}
	if err := cmd.Start(); err != nil {
		return Sum{}, fmt.Errorf("%s: %w; --python names the Python that has the package %[1]s", t.Package, err)
	}
	kill := context.AfterFunc(ctx, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	_, _ = in.Write(run) // if this fails, the process has ended, and Wait returns the reason
	defer context.AfterFunc(until, func() { _ = in.Close() })()
	answers := bufio.NewReader(out)
	first, _ := answers.ReadBytes('\n') // an empty line: the client has begun the run
	kill()
	rest, _ := io.ReadAll(answers)
	err = cmd.Wait()

	var answer struct {
		Sum
		Error string
	}
	text := append(first, rest...)
	switch wrong := json.Unmarshal(text, &answer); {
	case answer.Error != "":
		err = errors.New(answer.Error)
	case len(first) == 0 && ctx.Err() != nil:
		return Sum{}, ctx.Err()
	case err != nil:
		err = fmt.Errorf("not everything was delivered, and the lines above give the reason; run the same command again to forward the rest: "+
			"the client's Python process: %w", err)
	case wrong != nil:
		err = fmt.Errorf("the client's Python process answered %.100q instead of the number of records", text)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", t.Package, err)
	}
	return answer.Sum, err
}

// describe returns the line that describes a run to the script, and the environment of the script.
func (t Tracker) describe(dir string, more bool) (line []byte, env []string, err error) {
	env = os.Environ()
	if t.Package == "mlflow" {
		var uri string
		if uri, t.To, err = parseServer(t.To); err != nil {
			return nil, nil, err
		}
		env = append(env, "MLFLOW_TRACKING_URI="+uri)
	}
	cfg, err := config.Load(filepath.Join(dir, "config.yaml"), nil)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the configuration in the run's folder: %w", err)
	}
	params := cfg.Shared()
	delete(params, "agents") // a list of names in addition to the sections with these names
	line, err = json.Marshal(map[string]any{"tracker": t.Package, "to": t.To, "dir": dir, "name": cfg.Run.Name, "params": params, "by_tool": metrics.ByTool,
		"more": more})
	return append(line, '\n'), env, err
}
