package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// sglang implements the protocol of SGLang. Each reply carries the version of the weights that sampled it.
type sglang struct{ r *replica }

// reserved is the number of positions that SGLang keeps for itself at the end of its context.
const reserved = 8

func (g *sglang) inspect(ctx context.Context) (info serverInfo, err error) {
	var reply struct {
		Version string `json:"version"`
		Context *int   `json:"context_length"`
		Longest int    `json:"max_req_input_len"`
	}
	if err := g.r.ctl(ctx, http.MethodGet, "/server_info", nil, &reply); err != nil {
		return info, missing(err, "is this an SGLang server? engine.url is its own address, without /v1; docs/engines.md lists the known releases")
	}
	info = serverInfo{name: "SGLang " + reply.Version, context: reply.Longest,
		routes: "token ids through /generate, weights through /update_weights_from_disk, their version in every reply"}
	if reply.Context != nil && (info.context == 0 || *reply.Context < info.context) {
		info.context = *reply.Context
	}
	if info.context -= reserved; info.context < 2 {
		return info, fmt.Errorf("/server_info does not report context_length or max_req_input_len, or reports too small a value: " +
			"start it with --context-length")
	}
	_, err = g.stamp(ctx)
	return info, err
}

func (g *sglang) load(ctx context.Context, folder, stamp string) error {
	var reply struct {
		Success bool   `json:"success"`
		Message string `json:"message"`
	}
	// As a request of its own, flush_cache fails while any request is in flight, such as the server's own warm-up.
	body := map[string]any{"model_path": folder, "weight_version": stamp, "flush_cache": true}
	if err := g.r.ctl(ctx, http.MethodPost, "/update_weights_from_disk", body, &reply); err != nil {
		return fmt.Errorf("loading %s: %w", folder, err)
	}
	if !reply.Success {
		return fmt.Errorf("loading %s: %s", folder, g.r.quote(reply.Message))
	}
	reports, err := g.stamp(ctx)
	if err == nil && reports != stamp {
		err = fmt.Errorf("it was asked to load the weights %s but reports %s: this release does not keep weight_version", stamp, quote(reports))
	}
	return err
}

func (g *sglang) stamp(ctx context.Context) (string, error) {
	var reply struct {
		Version *string `json:"weight_version"`
	}
	if err := g.r.ctl(ctx, http.MethodGet, "/model_info", nil, &reply); err != nil {
		return "", err
	}
	if reply.Version == nil {
		return "", errors.New("/model_info does not report weight_version: this release cannot prove its weights")
	}
	return *reply.Version, nil
}

func (g *sglang) request(q prompt) (path string, body any) {
	s := q.sampling
	topP, topK := s.TopP, s.TopK
	if topP == 0 {
		topP = 1
	}
	if topK == 0 {
		topK = -1 // all tokens
	}
	params := map[string]any{
		"max_new_tokens": q.most, "temperature": s.Temperature, "top_k": topK, "top_p": topP, "min_p": s.MinP, "sampling_seed": q.seed,
		"stop_token_ids": ids(s.StopIDs),
		"ignore_eos":     len(s.StopIDs) == 0, // with it SGLang ignores stop_token_ids, too
	}
	if len(s.StopStrings) > 0 {
		params["stop"], params["no_stop_trim"], params["skip_special_tokens"] = s.StopStrings, true, false
	}
	return "/generate", map[string]any{"input_ids": q.tokens, "sampling_params": params, "return_logprob": true}
}

func (g *sglang) decode(body []byte) (a answer, err error) {
	var reply struct {
		IDs  []int32 `json:"output_ids"`
		Meta struct {
			Stamp    *string             `json:"weight_version"`
			LogProbs [][]json.RawMessage `json:"output_token_logprobs"` // [log-prob, id, ...] of each token
		} `json:"meta_info"`
	}
	if err := json.Unmarshal(body, &reply); err != nil {
		return a, err
	}
	if reply.Meta.Stamp == nil || *reply.Meta.Stamp == "" {
		return a, errors.New("no weight_version")
	}
	a.stamp = *reply.Meta.Stamp
	for i, t := range reply.Meta.LogProbs {
		var lp *float64
		var id *int32
		if len(t) < 2 || json.Unmarshal(t[0], &lp) != nil || json.Unmarshal(t[1], &id) != nil || lp == nil || id == nil {
			return a, fmt.Errorf("token %d does not have a log-prob and an id", i)
		}
		a.ids, a.logProbs = append(a.ids, *id), append(a.logProbs, *lp)
	}
	if len(reply.IDs) != len(a.ids) {
		return a, fmt.Errorf("%d tokens and %d log-probs", len(reply.IDs), len(a.ids))
	}
	for i, id := range reply.IDs {
		if id != a.ids[i] {
			return a, fmt.Errorf("token %d is %d, but its log-prob belongs to %d", i, id, a.ids[i])
		}
	}
	return a, nil
}
