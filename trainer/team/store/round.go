package store

import (
	"context"

	"github.com/mgrpo/mgrpo/trainer/internal/failpoint"
)

// Round is a time in which the team's workers work together. It begins with their agreement on a state, and lasts until the
// run ends or the team goes back to an earlier state.
type Round struct {
	at     *place
	offers offers // states that the member can start from
}

// Nonce returns a random name of the round.
func (r *Round) Nonce() string { return r.at.nonce }

// BarrierKind is the kind of a barrier, a moment at which all workers of a round wait for each other.
type BarrierKind string

// The workers wait for each other when they are ready to begin the round, and when they have finished the run.
const (
	Ready    BarrierKind = "ready"
	Finished BarrierKind = "finished"
)

// Barrier publishes that the member's worker has reached a barrier, and waits until the workers of all agents have. A worker
// that takes over a place later finds the barriers of the round in the store. After every read, waiting is called with the
// agents that are missing. The wait ends with the member's place.
func (r *Round) Barrier(ctx context.Context, kind BarrierKind, waiting func(agents []string)) error {
	ctx, cancel := WithPlace(ctx, r.at.ctx)
	defer cancel()
	failpoint.Here("barrier", string(kind), "before")
	what := "being " + string(kind)
	_, err := r.at.write(ctx, barrierScript, what,
		values{"events": r.at.key("events"), "barrier": r.at.key("barrier", string(kind)), "topic": "barrier/" + string(kind)})
	if err != nil {
		return err
	}
	failpoint.Here("barrier", string(kind), "after")
	_, err = gather(ctx, r.at.Store, what, func(_, epoch string) (string, error) { return epoch, nil }, waiting, "barrier", string(kind))
	return err
}

// Missing lists the agents without a live worker.
func (r *Round) Missing(ctx context.Context) (missing []string, err error) {
	err = r.at.retry(ctx, "who is alive", func(ctx context.Context) error {
		missing = nil
		for _, a := range r.at.agents.all() {
			n, err := r.at.rdb.Exists(ctx, r.at.key("lease", a)).Result()
			if err != nil {
				return err
			}
			if n == 0 {
				missing = append(missing, a)
			}
		}
		return nil
	})
	return missing, err
}

// Stop ends the round for all agents. After Rewind they join again and continue from the newest checkpoint that all of them
// have; after Asked they can resume the run later. The first reason is kept.
func (r *Round) Stop(ctx context.Context, kind StopKind, reason string) error {
	_, err := r.at.write(ctx, stopScript, "the end of the run", values{
		"events": r.at.key("events"), "stop": r.at.key("stop"), "reason": clip(reason), "kind": string(kind)})
	return err
}

// AskStop requests that the main agent ends the run at its next phase. The request does not stop any worker by itself. It
// remains in the store until the next round.
func (r *Round) AskStop(ctx context.Context) error {
	_, err := r.at.write(ctx, askScript, "asking for a stop", values{"meta": r.at.key("meta")})
	return err
}

// StopAsked returns the first agent that asked for a stop, or "" if there is none.
func (r *Round) StopAsked(ctx context.Context) (agent string, err error) {
	agent, err = r.at.field(ctx, r.at.key("meta"), "asked", "whether a stop was asked for")
	return clip(agent), err
}
