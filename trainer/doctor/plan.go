package doctor

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/mgrpo/mgrpo/trainer/assemble"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/memory"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// Preflight prints the memory plan of the agents that are to run in this process (nil: all) and refuses
// what does not fit, before anything is allocated.
func Preflight(w io.Writer, cfg *config.Config, agents []string) error {
	plans, err := assemble.MemoryPlans(cfg, agents)
	if err != nil {
		return err
	}
	free := available()
	memory.Write(w, plans, free)
	return memory.Fits(plans, free)
}

// configured looks at what the configuration needs: it opens what a training opens, and no weights.
func configured(ctx context.Context, cfg *config.Config) (out []Finding) {
	t, noTask := assemble.Task(cfg)
	if noTask != nil {
		out = append(out, Finding{Fail, "task", oneLine(noTask), "correct the task section"})
	} else {
		out = append(out, opened(ctx, cfg, t)...)
		task.Close(t)
	}
	plans, err := assemble.MemoryPlans(cfg, nil)
	if err == nil {
		return append(out, planned(cfg, plans)...)
	}
	if noTask != nil { // else each agent has said it
		out = append(out, Finding{Fail, "models", oneLine(err), "correct the agent's model"})
	}
	return append(out, disk(cfg.RunDir(), 0))
}

// opened looks at how answers are scored and at the parts of each agent.
func opened(ctx context.Context, cfg *config.Config, t task.Task) []Finding {
	out := []Finding{{OK, "task", cfg.Task.Kind, ""}}
	if err := scores(ctx, cfg, t); err != nil {
		out = append(out, Finding{Fail, "verifier", oneLine(err), "correct task.verifier, task.expert or task.judge"})
	}
	for _, name := range cfg.AgentNames() {
		if err := assemble.Rehearse(ctx, cfg, cfg.Agent(name), t); err != nil {
			out = append(out, Finding{Fail, name, oneLine(err), "without this the agent's worker does not start"})
		}
	}
	return out
}

// scorePatience bounds how long the verifiers may take.
const scorePatience = time.Minute

// scores has the verifiers score the reference answer of the first question. A task with a language of its own scores
// without them.
func scores(ctx context.Context, cfg *config.Config, t task.Task) error {
	if _, ok := t.(task.Speaker); ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, scorePatience)
	defer cancel()
	q := t.Train(0)
	attempt := task.Attempt{Agent: cfg.Main().Name, Answer: q.Answer, Conversation: []task.Message{{Role: "prompt", Text: q.Text}, {Role: "assistant", Text: q.Answer}}}
	_, err := t.VerifyMain(ctx, q, attempt)
	if subs := cfg.Subs(); err == nil && len(subs) > 0 {
		attempt.Agent, attempt.Invocation, attempt.Subtask = subs[0].Name, 1, q.Text
		_, err = t.VerifySub(ctx, q, attempt)
	}
	if err != nil {
		return fmt.Errorf("the reference answer of question %s has no score: %w", q.ID, err)
	}
	return nil
}

// planned compares what the agents need with what is here.
func planned(cfg *config.Config, plans []memory.Plan) (out []Finding) {
	files, free := int64(0), available()
	for _, p := range plans {
		files += p.Files
		out = append(out, Finding{OK, "plan", p.String(), ""})
	}
	for _, s := range memory.Sums(plans, free) {
		out = append(out, Finding{OK, "in all", s.String(), ""})
	}
	if err := memory.Fits(plans, free); err != nil {
		out = append(out, Finding{Fail, "memory", oneLine(err), ""})
	}
	// The newest run.keep, the best, and the one being written.
	return append(out, disk(cfg.RunDir(), int64(cfg.Run.Keep+2)*files))
}

// available is free memory by device, in bytes; a device that is not known is absent.
func available() map[string]int64 {
	out := map[string]int64{}
	if m, err := memory.Host("/"); err == nil {
		out["cpu"] = m.Available
	}
	for index, free := range seeGPUs().free {
		out[fmt.Sprintf("cuda:%d", index)] = free
	}
	return out
}
