package assemble

import (
	"context"
	"errors"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent/hosted"
	"github.com/mgrpo/mgrpo/trainer/agent/openai"
	"github.com/mgrpo/mgrpo/trainer/agent/play"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// checkPatience is the longest time that a hosted model may take for its first reply.
const checkPatience = 2 * time.Minute

// openHosted builds an agent with a hosted model and asks the model for a turn. So a wrong address,
// key or name is an error here and not in the middle of a run.
func openHosted(ctx context.Context, cfg *config.Config, a *config.Agent, t task.Task, note func(string)) (*hosted.Model, *play.Player, error) {
	e := a.Model.Endpoint
	m, err := hosted.Open(openai.Options{URL: e.URL, KeyEnv: e.KeyEnv, Timeout: e.Timeout, Retries: e.Retries}, e.Name)
	if err != nil {
		return nil, nil, cfg.Fault("agents."+a.Name+".model", err)
	}
	s, err := openPlayerSettings(ctx, cfg, a, t, note)
	if err != nil {
		return nil, nil, errors.Join(err, m.Close(ctx))
	}
	s.Hosted = m
	p, err := play.New(s)
	if err != nil {
		return nil, nil, errors.Join(err, m.Close(ctx))
	}
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	sampling := policy.Sampling{Temperature: cfg.GRPO.Temperature, TopK: cfg.Eval.TopK, TopP: cfg.Eval.TopP, MinP: cfg.Eval.MinP}
	if err := p.Check(ctx, sampling); err != nil {
		return nil, nil, errors.Join(cfg.Fault("agents."+a.Name+".model", err), p.Close(), m.Close(ctx))
	}
	return m, p, nil
}
