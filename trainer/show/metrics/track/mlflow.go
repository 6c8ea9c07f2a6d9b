package track

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"strings"
)

// MLflow returns an Opener for URI/EXPERIMENT, or for an experiment on the server of MLFLOW_TRACKING_URI. The experiment is
// created if it does not exist. python is the name or path of a Python that has the package mlflow. The credentials are in the
// environment variables of its client: MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.
func MLflow(experiment, python string) Opener {
	return func(ctx context.Context, run Run) (Tracker, error) {
		env, name, err := mlflowEnv(experiment)
		if err != nil {
			return nil, err
		}
		params := map[string]string{}
		for key, text := range run.Params {
			params[key] = plain(text)
		}
		return open(ctx, "mlflow", python, env, map[string]any{"experiment": name, "id": run.ID, "name": run.Name, "began": run.Began.UnixMilli(),
			"params": params})
	}
}

// mlflowEnv separates the experiment from URI/EXPERIMENT. It returns this process's environment with the URI, and an error if it
// has no address of a server: the client would write files.
func mlflowEnv(text string) (env []string, experiment string, err error) {
	const wanted = "MLFLOW_TRACKING_URI, such as http://127.0.0.1:5000"
	uri, experiment := os.Getenv("MLFLOW_TRACKING_URI"), text
	if i := strings.LastIndex(text, "/"); i >= 0 && strings.Contains(text, "://") {
		uri, experiment = text[:i], text[i+1:]
	}
	if uri == "" {
		return nil, "", errors.New("no server is given: set " + wanted)
	}
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, "", errors.New("not the address of a tracking server: set " + wanted)
	}
	return append(os.Environ(), "MLFLOW_TRACKING_URI="+strings.TrimRight(uri, "/")), experiment, nil
}

// askMLflow asks a server once for an experiment. It returns an error if the server does not answer, or refuses the user.
func askMLflow(ctx context.Context, text, python string) error {
	env, experiment, err := mlflowEnv(text)
	if err != nil {
		return err
	}
	const ask = "import sys, mlflow; mlflow.MlflowClient().get_experiment_by_name(sys.argv[1])"
	cmd := exec.CommandContext(ctx, python, "-c", ask, experiment)
	cmd.Env = append(env, "PYTHONSAFEPATH=1", "MLFLOW_HTTP_REQUEST_MAX_RETRIES=0")
	_, err = cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		lines := strings.Split(strings.TrimSpace(string(exit.Stderr)), "\n")
		return errors.New(lines[len(lines)-1])
	}
	return err
}

// plain returns a value of the configuration for people.
func plain(yaml string) string {
	var text string
	if json.Unmarshal([]byte(yaml), &text) != nil {
		return yaml
	}
	return text
}
