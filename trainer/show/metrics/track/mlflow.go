package track

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of one log-batch request of MLflow, and of the values of a parameter in old servers.
const (
	maxMetrics    = 1000
	maxParams     = 100
	maxParamRunes = 500
)

// runTag is the tag by which a run is found again.
const runTag = "mgrpo.run"

// mlflow is a run on an MLflow tracking server.
type mlflow struct {
	api        api
	run        Run
	experiment string
	say        func(format string, args ...any)

	page   string           // address of the run's page
	id     string           // "": not yet found or created
	newest map[string]int64 // newest step that the server has, by metric; nil: unknown
}

// MLflow returns an Opener for URI/EXPERIMENT, or for an experiment on the server of MLFLOW_TRACKING_URI. The experiment is
// created if it does not exist. The credentials are in the environment variables of MLflow's own client:
// MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD. say receives messages for people.
func MLflow(experiment string, say func(format string, args ...any)) Opener {
	return mlflowOpener(experiment, say, sleep)
}

// mlflowEnv separates the experiment from URI/EXPERIMENT. It returns an environment in which MLFLOW_TRACKING_URI is the
// URI.
func mlflowEnv(text string) (env func(string) string, experiment string) {
	i := strings.LastIndex(text, "/")
	if i < 0 || !strings.Contains(text, "://") {
		return os.Getenv, text
	}
	return func(name string) string {
		if name == "MLFLOW_TRACKING_URI" {
			return text[:i]
		}
		return os.Getenv(name)
	}, text[i+1:]
}

// mlflowOpener returns an Opener as MLflow does, with a function that waits between two attempts.
func mlflowOpener(text string, say func(string, ...any), wait func(context.Context, time.Duration) bool) Opener {
	env, experiment := mlflowEnv(text)
	return func(ctx context.Context, run Run) (Tracker, error) {
		m := &mlflow{run: run, experiment: experiment, say: say}
		var err error
		if m.api, err = newAPI(env, wait); err == nil {
			err = m.api.retry(ctx, func() error { return m.begin(ctx) })
		}
		if err != nil {
			return nil, fmt.Errorf("MLflow: %w", err)
		}
		say("%s", m.page)
		return m, nil
	}
}

// metric, pair and found are parts of MLflow's messages.
type metric struct {
	Key       string      `json:"key"`
	Value     float64     `json:"value"`
	Timestamp int64       `json:"timestamp"` // ms
	Step      json.Number `json:"step"`      // text, because some servers send it as text
}

type pair struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

type found struct {
	Info struct {
		ID string `json:"run_id"`
	} `json:"info"`
	Data struct {
		Metrics []struct {
			Key  string      `json:"key"`
			Step json.Number `json:"step"`
		} `json:"metrics"`
		Params []pair `json:"params"`
	} `json:"data"`
}

// begin finds the run by its tag, or creates it. It may be called again after any failure.
func (m *mlflow) begin(ctx context.Context) error {
	experiment, err := m.findExperiment(ctx)
	if err != nil {
		return err
	}
	var list struct{ Runs []found }
	err = m.api.post(ctx, "runs/search", map[string]any{"experiment_ids": []string{experiment}, "max_results": 1,
		"filter": fmt.Sprintf("tags.`%s` = '%s'", runTag, m.run.ID)}, &list)
	if err != nil {
		return err
	}
	id := ""
	if len(list.Runs) > 0 {
		id = list.Runs[0].Info.ID
		err = m.api.post(ctx, "runs/update", map[string]any{"run_id": id, "status": "RUNNING"}, nil)
	} else {
		var reply struct{ Run found }
		err = m.api.post(ctx, "runs/create", map[string]any{"experiment_id": experiment, "run_name": m.run.Name,
			"start_time": m.run.Began.UnixMilli(), "tags": []pair{{runTag, m.run.ID}}}, &reply)
		id = reply.Run.Info.ID
	}
	if err != nil {
		return err
	}
	if id == "" {
		return errors.New("the server's reply does not name a run")
	}
	m.id = id
	m.page = m.api.base.Redacted() + "/#/experiments/" + url.PathEscape(experiment) + "/runs/" + url.PathEscape(id)
	return m.params(ctx)
}

// notThere is the error code of an experiment that the server does not have.
const notThere = "RESOURCE_DOES_NOT_EXIST"

// findExperiment returns the id of the experiment, which it creates if there is none.
func (m *mlflow) findExperiment(ctx context.Context) (string, error) {
	var reply struct {
		Experiment struct {
			ID    string `json:"experiment_id"`
			Stage string `json:"lifecycle_stage"`
		} `json:"experiment"`
	}
	err := m.api.get(ctx, "experiments/get-by-name", url.Values{"experiment_name": {m.experiment}}, &reply)
	var refused *refusal
	if errors.As(err, &refused) && refused.Code == notThere {
		var created struct {
			ID string `json:"experiment_id"`
		}
		err = m.api.post(ctx, "experiments/create", map[string]any{"name": m.experiment}, &created)
		if errors.As(err, &refused) && refused.Code == "RESOURCE_ALREADY_EXISTS" { // another client was faster
			err = &transient{err}
		}
		reply.Experiment.ID = created.ID
	}
	switch {
	case err != nil:
		return "", err
	case reply.Experiment.Stage == "deleted":
		return "", fmt.Errorf("the experiment %q is deleted: restore it, or name another one", m.experiment)
	case reply.Experiment.ID == "":
		return "", errors.New("the server's reply does not name an experiment")
	}
	return reply.Experiment.ID, nil
}

// state reads the state of the run from the server.
func (m *mlflow) state(ctx context.Context) (found, error) {
	var reply struct{ Run found }
	err := m.api.get(ctx, "runs/get", url.Values{"run_id": {m.id}}, &reply)
	return reply.Run, err
}

// params writes the configuration. MLflow never changes a parameter, so a parameter keeps its first value if its key was
// changed for a resume.
func (m *mlflow) params(ctx context.Context) error {
	there, err := m.state(ctx)
	if err != nil {
		return err
	}
	old := map[string]string{}
	for _, p := range there.Data.Params {
		old[p.Key] = p.Value
	}
	var missing []pair
	for _, key := range slices.Sorted(maps.Keys(m.run.Params)) {
		value := paramText(m.run.Params[key])
		if was, known := old[key]; !known {
			missing = append(missing, pair{key, value})
		} else if was != value {
			m.say("MLflow keeps the first value of a parameter: %s is %s there and %s now", key, was, value)
		}
	}
	for part := range slices.Chunk(missing, maxParams) {
		if err := m.api.post(ctx, "runs/log-batch", map[string]any{"run_id": m.id, "params": part}, nil); err != nil {
			return err
		}
	}
	return nil
}

// paramText returns a value of the configuration for people. A value that is too long is cut; the run's folder has the
// whole value.
func paramText(yaml string) string {
	var text string
	if json.Unmarshal([]byte(yaml), &text) != nil {
		text = yaml
	}
	if utf8.RuneCountInString(text) > maxParamRunes {
		text = string([]rune(text)[:maxParamRunes-1]) + "…"
	}
	return text
}

// Log implements Tracker. MLflow has no histograms.
func (m *mlflow) Log(ctx context.Context, rows []Row) error {
	var all []metric
	for _, r := range rows {
		for _, name := range slices.Sorted(maps.Keys(r.Values)) {
			all = append(all, metric{name, r.Values[name], r.Time.UnixMilli(), json.Number(fmt.Sprint(r.Step))})
		}
	}
	for part := range slices.Chunk(all, maxMetrics) {
		if err := m.api.retry(ctx, func() error { return m.send(ctx, part) }); err != nil {
			return fmt.Errorf("MLflow: %w; run the same command again to forward the rest", err)
		}
	}
	return nil
}

// send writes the metrics that the server does not have yet. After a failure it is unknown which ones it has, so they are
// read again.
func (m *mlflow) send(ctx context.Context, part []metric) error {
	if m.newest == nil {
		there, err := m.state(ctx)
		if err != nil {
			return err
		}
		m.newest = map[string]int64{}
		for _, has := range there.Data.Metrics {
			step, err := has.Step.Int64()
			if err != nil {
				return fmt.Errorf("the server has %q at step %q, which is not a number", has.Key, has.Step)
			}
			m.newest[has.Key] = step
		}
	}
	var lacks []metric
	for _, x := range part {
		step, _ := x.Step.Int64() // written by Log: always an integer
		if newest, any := m.newest[x.Key]; !any || step > newest {
			lacks = append(lacks, x)
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	if err := m.api.post(ctx, "runs/log-batch", map[string]any{"run_id": m.id, "metrics": lacks}, nil); err != nil {
		m.newest = nil
		return err
	}
	for _, x := range lacks {
		m.newest[x.Key], _ = x.Step.Int64()
	}
	return nil
}

// Close implements Tracker. A run that is not complete keeps the status running, because it may be continued.
func (m *mlflow) Close(ctx context.Context, complete bool) error {
	if !complete {
		return nil
	}
	err := m.api.retry(ctx, func() error {
		return m.api.post(ctx, "runs/update", map[string]any{"run_id": m.id, "status": "FINISHED", "end_time": time.Now().UnixMilli()}, nil)
	})
	if err != nil {
		return fmt.Errorf("MLflow: %w", err)
	}
	return nil
}
