package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// vllm implements the protocol of a vLLM server. The server was started with
// VLLM_SERVER_DEV_MODE=1, for the routes that change weights. It also has the worker extension
// of deploy/vllm, which loads a folder and remembers its stamp.
type vllm struct {
	r     *replica
	model string // the server's name for the model
}

const extension = "start it with VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls mgrpo_weights.Weights, with deploy/vllm on PYTHONPATH (docs/engines.md)"

func (v *vllm) inspect(ctx context.Context) (info serverInfo, err error) {
	var version struct {
		Version string `json:"version"`
	}
	if err := v.r.ctl(ctx, http.MethodGet, "/version", nil, &version); err != nil {
		return info, missing(err, "is this a vLLM server? engine.url is its own address, without /v1")
	}
	var models struct {
		Data []struct {
			ID      string `json:"id"`
			Context int    `json:"max_model_len"`
		} `json:"data"`
	}
	if err := v.r.ctl(ctx, http.MethodGet, "/v1/models", nil, &models); err != nil {
		return info, err
	}
	if len(models.Data) == 0 || models.Data[0].Context < 2 {
		return info, errors.New("/v1/models does not list a model with max_model_len: is this a vLLM server?")
	}
	v.model = models.Data[0].ID
	if _, err := v.stamp(ctx); err != nil {
		return info, err
	}
	return serverInfo{name: "vLLM " + version.Version, context: models.Data[0].Context,
		routes: "token ids through /inference/v1/generate, weights through the worker extension, which reports their version"}, nil
}

// resumeTime is the time for a server to resume after a load.
const resumeTime = 10 * time.Second

// load uses only pause, a method of the extension, and reset_prefix_cache, which vLLM's releases of a whole year have.
func (v *vllm) load(ctx context.Context, folder, stamp string) (err error) {
	post := func(path string, body any) error { return v.r.ctl(ctx, http.MethodPost, path, body, nil) }
	defer func() { // also if the load is cancelled: other clients of the server wait
		resuming, cancel := context.WithTimeout(context.WithoutCancel(ctx), resumeTime)
		defer cancel()
		if resumed := v.r.ctl(resuming, http.MethodPost, "/resume", nil, nil); err == nil {
			err = resumed
		}
	}()
	if err := post("/pause?mode=wait", nil); err != nil {
		return missing(err, extension)
	}
	if _, err := v.rpc(ctx, "mgrpo_load", folder, stamp); err != nil {
		return fmt.Errorf("loading %s: %w", folder, err)
	}
	if err := post("/reset_prefix_cache", nil); err != nil {
		return err
	}
	reports, err := v.stamp(ctx)
	if err == nil && reports != stamp {
		err = fmt.Errorf("it was asked to load the weights %s but reports %s", stamp, quote(reports))
	}
	return err
}

func (v *vllm) stamp(ctx context.Context) (string, error) { return v.rpc(ctx, "mgrpo_version") }

// rpc calls a method of the extension in every worker process. All must return the same stamp.
func (v *vllm) rpc(ctx context.Context, method string, args ...string) (string, error) {
	var reply struct {
		Results []struct {
			Stamp *string `json:"stamp"`
			Error string  `json:"error"`
		} `json:"results"`
	}
	body := map[string]any{"method": method}
	if len(args) > 0 {
		body["args"] = args
	}
	err := v.r.ctl(ctx, http.MethodPost, "/collective_rpc", body, &reply)
	var status *statusError
	if errors.As(err, &status) && status.code == http.StatusInternalServerError && v.r.ctl(ctx, http.MethodGet, "/health", nil, nil) == nil {
		return "", fmt.Errorf("%v: %s", err, extension) // not %w: the server is not away
	}
	if err != nil {
		return "", missing(err, extension)
	}
	if len(reply.Results) == 0 {
		return "", fmt.Errorf("no worker answered %s: %s", method, extension)
	}
	for _, w := range reply.Results {
		switch {
		case w.Error != "":
			return "", fmt.Errorf("%s: %s", method, v.r.quote(w.Error))
		case w.Stamp == nil:
			return "", fmt.Errorf("a worker answered %s without a stamp: %s", method, extension)
		case *w.Stamp != *reply.Results[0].Stamp:
			return "", fmt.Errorf("its workers hold different weights, %s and %s", quote(*w.Stamp), quote(*reply.Results[0].Stamp))
		}
	}
	return *reply.Results[0].Stamp, nil
}

// missing adds advice to the error of a route that a server does not have.
func missing(err error, advice string) error {
	var status *statusError
	if errors.As(err, &status) && (status.code == http.StatusNotFound || status.code == http.StatusMethodNotAllowed ||
		status.code == http.StatusNotImplemented) {
		return fmt.Errorf("%w: %s", err, advice)
	}
	return err
}

func (v *vllm) request(q prompt) (path string, body any) {
	s := q.sampling
	topP := s.TopP
	if topP == 0 {
		topP = 1
	}
	params := map[string]any{
		"max_tokens": q.most, "temperature": s.Temperature, "top_k": s.TopK, "top_p": topP, "min_p": s.MinP, "seed": q.seed,
		"logprobs":   0,                                      // of the sampled token only
		"ignore_eos": true, "stop_token_ids": ids(s.StopIDs), // a turn has its own stop ids and no others
		"detokenize": len(s.StopStrings) > 0,
	}
	if len(s.StopStrings) > 0 {
		params["stop"], params["include_stop_str_in_output"], params["skip_special_tokens"] = s.StopStrings, true, false
	}
	return "/inference/v1/generate", map[string]any{"model": v.model, "token_ids": q.tokens, "sampling_params": params}
}

// ids returns a list that is never null.
func ids(list []int32) []int32 { return append([]int32{}, list...) }

func (v *vllm) decode(body []byte) (a answer, err error) {
	var reply struct {
		Choices []struct {
			IDs      []int32 `json:"token_ids"`
			LogProbs *struct {
				Content []struct {
					LogProb *float64 `json:"logprob"`
				} `json:"content"`
			} `json:"logprobs"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(body, &reply); err != nil {
		return a, err
	}
	if len(reply.Choices) != 1 {
		return a, fmt.Errorf("there are %d choices, but 1 was requested", len(reply.Choices))
	}
	c := reply.Choices[0]
	if c.LogProbs == nil {
		return a, errors.New("no log-probs")
	}
	a.ids = c.IDs
	for i, t := range c.LogProbs.Content {
		if t.LogProb == nil {
			return a, fmt.Errorf("token %d does not have a log-prob", i)
		}
		a.logProbs = append(a.logProbs, *t.LogProb)
	}
	return a, nil
}
