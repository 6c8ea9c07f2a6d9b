package track

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/internal/durable"
)

// Followers forwards the records of a run to the trackers of its configuration while the run writes them. A tracker that is
// slow or unreachable does not delay the run.
type Followers struct {
	end  context.CancelFunc
	work sync.WaitGroup
}

// trackers returns the trackers of a configuration.
func trackers(cfg *config.Config) (all []Tracker) {
	t := cfg.Tracking
	for _, one := range []Tracker{{"mlflow", t.MLflow, t.Python}, {"tensorboard", cfg.Resolve(t.TensorBoard), t.Python}, {"wandb", t.WandB, t.Python}} {
		if one.To != "" {
			all = append(all, one)
		}
	}
	return all
}

// Check returns an error if a tracker of a configuration cannot work: the Python does not have
// its package, or there is no address of an MLflow server.
func Check(ctx context.Context, cfg *config.Config) error {
	for _, t := range trackers(cfg) {
		if t.Package == "mlflow" {
			if _, _, err := parseServer(t.To); err != nil {
				return fmt.Errorf("tracking.mlflow: %w, or write URI/EXPERIMENT", err)
			}
		}
		const look = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
		err := exec.CommandContext(ctx, t.Python, "-c", look, t.Package).Run()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return fmt.Errorf("tracking.%s: %s does not have the package %[1]s: run %[2]s -m pip install %[1]s, or name another Python in tracking.python",
				t.Package, t.Python)
		}
		if err != nil {
			return fmt.Errorf("tracking.python: %w", err)
		}
	}
	return nil
}

// parseServer separates URI/EXPERIMENT, or returns the URI of MLFLOW_TRACKING_URI. It returns an error if there is no
// address of a server: the client would write files.
func parseServer(text string) (uri, experiment string, err error) {
	const wanted = "MLFLOW_TRACKING_URI, such as http://127.0.0.1:5000"
	uri, experiment = os.Getenv("MLFLOW_TRACKING_URI"), text
	if i := strings.LastIndex(text, "/"); i >= 0 && strings.Contains(text, "://") {
		uri, experiment = text[:i], text[i+1:]
	}
	if uri == "" {
		return "", "", errors.New("no server is given: set " + wanted)
	}
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", "", errors.New("not the address of a tracking server: set " + wanted)
	}
	return strings.TrimRight(uri, "/"), experiment, nil
}

// CheckServer asks the MLflow server of a configuration once for the experiment. It returns an error if
// the server does not answer, or refuses the user.
func CheckServer(ctx context.Context, cfg *config.Config) error {
	if cfg.Tracking.MLflow == "" {
		return nil
	}
	uri, experiment, err := parseServer(cfg.Tracking.MLflow)
	if err != nil {
		return err
	}
	const ask = "import sys, mlflow; mlflow.MlflowClient().get_experiment_by_name(sys.argv[1])"
	cmd := exec.CommandContext(ctx, cfg.Tracking.Python, "-c", ask, experiment)
	cmd.Env = append(os.Environ(), "MLFLOW_TRACKING_URI="+uri, "PYTHONSAFEPATH=1", "MLFLOW_HTTP_REQUEST_MAX_RETRIES=0")
	_, err = cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		lines := strings.Split(strings.TrimSpace(string(exit.Stderr)), "\n")
		return errors.New(lines[len(lines)-1])
	}
	return err
}

// Follow starts a follower for each tracker of a configuration. It returns the error of Check. say gets the errors of
// trackers.
func Follow(ctx context.Context, cfg *config.Config, say func(format string, args ...any)) (*Followers, error) {
	if err := Check(ctx, cfg); err != nil {
		return nil, err
	}
	until, end := context.WithCancel(ctx)
	f := &Followers{end: end}
	for _, t := range trackers(cfg) {
		f.work.Go(func() {
			if err := t.follow(ctx, until, cfg.RunDir()); err != nil && ctx.Err() == nil {
				say("tracking (%s) has ended, the run continues: %v; mgrpo track can forward the rest later", t.Package, err)
			}
		})
	}
	return f, nil
}

// follow forwards records until until ends. If several workers share a folder, one of them forwards the records.
func (t Tracker) follow(ctx, until context.Context, dir string) error {
	began, err := awaitFirstRecord(until, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if !began {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(dir, ".tracking-"+t.Package+".lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return err
	}
	defer lock.Close()
	if locked, _ := durable.TryLock(lock, durable.Exclusive); !locked {
		return nil
	}
	_, err = t.forward(ctx, until, dir, true)
	return err
}

// Finish waits until all records of the run are delivered, or the followers' context ends.
func (f *Followers) Finish() {
	f.end()
	f.work.Wait()
}
