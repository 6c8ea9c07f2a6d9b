package worker

import (
	"context"

	"github.com/mgrpo/mgrpo/trainer/model/weights"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// parameters gives an archive access to a worker's weights and moments.
type parameters struct{ w *Worker }

func (p parameters) Trains() bool { return p.w.trains() }

func (p parameters) Read(ctx context.Context, from int64, dst []float32) error {
	return p.w.parts.Params.Read(ctx, from, dst)
}

func (p parameters) Numel() int64 { return p.w.parts.Params.Numel() }

func (p parameters) Files(ctx context.Context, master func(from int64, dst []float32) error) weights.Files {
	return p.w.parts.Params.Files(ctx, master)
}

func (p parameters) Counters() archive.Counters {
	c := archive.Counters{Refused: int(p.w.steps.refusedSteps)}
	if p.w.trains() {
		c.Updates, c.Earlier = p.w.learner.Rank0.State.Steps(), p.w.learner.Rank0.State.Earlier
	}
	return c
}

func (p parameters) Ranks() int { return len(p.w.agent.Ranks()) }

func (p parameters) Restore(ctx context.Context, c archive.Counters, m, v func(from int64, dst []float32) error) error {
	if err := p.w.learner.RestoreMoments(ctx, m, v); err != nil {
		return err
	}
	p.w.learner.Rank0.State.SetSteps(c.Updates)
	p.w.learner.Rank0.State.Earlier = c.Earlier
	p.w.steps.refusedSteps = failureStreak(c.Refused)
	return nil
}

func (p parameters) RestoreMaster(ctx context.Context, master func(from int64, dst []float32) error) error {
	return p.w.parts.Params.Restore(ctx, master)
}

func (p parameters) Copy(ctx context.Context, master, m, v []float32) error {
	return p.w.learner.Copy(ctx, master, m, v)
}
