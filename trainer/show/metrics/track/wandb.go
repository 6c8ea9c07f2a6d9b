package track

import (
	"context"
	"encoding/json"
	"os"
	"strings"
)

// WandB returns an Opener for a project of Weights & Biases. A Row becomes a step of the W&B
// run. python is the name or path of a Python that has the package wandb. Everything else is set
// by the client's own environment variables, such as WANDB_API_KEY, WANDB_ENTITY and WANDB_MODE.
//
// Offline, the client does not have access to the rows that it wrote before, and would append a
// second folder to the first one on the server. So write a run offline only once.
func WandB(project, python string) Opener {
	return func(ctx context.Context, run Run) (Tracker, error) {
		return open(ctx, "wandb", python, wandbEnv(run, project), tree(run.Params))
	}
}

// wandbEnv returns this process's environment, with settings of the client that are not set there.
func wandbEnv(run Run, project string) []string {
	env := append(os.Environ(), "WANDB_PROJECT="+project)
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
