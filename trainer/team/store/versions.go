package store

import (
	"context"
	"fmt"
	"strconv"

	"github.com/mgrpo/mgrpo/trainer/internal/failpoint"
)

// PublishVersion publishes that the member's agent has committed a step: its weights have the version, which is one more
// than before.
func (m *Member) PublishVersion(ctx context.Context, version int64) error {
	defer failpoint.Around("commit.version")()
	what := fmt.Sprintf("version %d of %s", version, m.agent)
	reply, err := m.write(ctx, versionScript, what, values{
		"events": m.key("events"), "versions": m.key("versions"), "record": m.key("record"), "version": strconv.FormatInt(version, 10)})
	if err == nil && word(reply, 0) == "order" {
		return &ConflictError{What: what, Why: "it does not follow the stored version, " + clip(word(reply, 1))}
	}
	return err
}

// Versions returns the versions of the agents that have started in this round.
func (s *Store) Versions(ctx context.Context) (map[string]int64, error) {
	texts, err := s.rdb.HGetAll(ctx, s.key("versions")).Result()
	if err != nil {
		return nil, err
	}
	return readVersions(s.key("versions"), texts)
}

func readVersions(key string, texts map[string]string) (map[string]int64, error) {
	out := make(map[string]int64, len(texts))
	for agent, text := range texts {
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil || v < 0 {
			return nil, &MalformedError{Key: key + " " + clip(agent), Msg: fmt.Sprintf("%q is not a version", clip(text))}
		}
		out[agent] = v
	}
	return out, nil
}

// AwaitVersion waits until every agent has reached a version.
func (s *Store) AwaitVersion(ctx context.Context, version int64) error {
	var there map[string]int64
	behind := func() []string {
		var out []string
		for _, a := range s.allAgents() {
			if v, ok := there[a]; !ok || v < version {
				out = append(out, a)
			}
		}
		return out
	}
	return s.wait(ctx, func(ctx context.Context) (bool, error) {
		var err error
		there, err = s.Versions(ctx)
		return err == nil && len(behind()) == 0, err
	}, func() ([]string, string) {
		return behind(), fmt.Sprintf("version %d", version)
	}, "version")
}

// Stop ends the round for all agents. After Rewind they join again and continue from the newest checkpoint that all of them
// have; after Asked they can resume the run later. The first reason is kept.
func (m *Member) Stop(ctx context.Context, kind StopKind, reason string) error {
	_, err := m.write(ctx, stopScript, "the end of the run", values{
		"events": m.key("events"), "stop": m.key("stop"), "reason": clip(reason), "kind": string(kind)})
	return err
}

// AskStop asks the main agent to end the run at its next phase. The request remains in the store until the next round. It
// does not stop any worker by itself.
func (m *Member) AskStop(ctx context.Context) error {
	_, err := m.write(ctx, askScript, "asking for a stop", values{"meta": m.key("meta")})
	return err
}

// StopAsked returns the first agent that asked for a stop, or "" if there is none.
func (s *Store) StopAsked(ctx context.Context) (agent string, err error) {
	agent, err = s.field(ctx, s.key("meta"), "asked", "whether a stop was asked for")
	return clip(agent), err
}

// Trim deletes the phases up to step. Call it when the results of these phases are in every agent's checkpoint.
func (m *Member) Trim(ctx context.Context, step int64) error {
	defer failpoint.Around("checkpoint.trim")()
	_, err := m.write(ctx, trimScript, fmt.Sprintf("trimming up to %d", step), values{
		"phases": m.key("phases"), "step": step, "prefix": m.key(""), "agents...": m.allAgents()})
	return err
}
