package store

import (
	"context"
	"fmt"
	"strconv"

	"github.com/mgrpo/mgrpo/trainer/internal/failpoint"
)

// Versions holds the number of training steps that each agent has committed in the round.
type Versions struct{ at *place }

// Publish publishes that the member's agent has committed a step: its weights have the version, which is one more
// than before.
func (v *Versions) Publish(ctx context.Context, version int64) error {
	defer failpoint.Around("commit.version")()
	what := fmt.Sprintf("version %d of %s", version, v.at.agent)
	reply, err := v.at.write(ctx, versionScript, what, values{
		"events": v.at.key("events"), "versions": v.at.key("versions"), "record": v.at.key("record"), "version": strconv.FormatInt(version, 10)})
	if err == nil && replyText(reply, 0) == "order" {
		return &ConflictError{What: what, Why: "it does not follow the stored version, " + clip(replyText(reply, 1))}
	}
	return err
}

// All returns the versions of the agents that have started in this round.
func (v *Versions) All(ctx context.Context) (map[string]int64, error) {
	texts, err := v.at.rdb.HGetAll(ctx, v.at.key("versions")).Result()
	if err != nil {
		return nil, err
	}
	return readVersions(v.at.key("versions"), texts)
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

// Await waits until every agent has reached a version.
func (v *Versions) Await(ctx context.Context, version int64) error {
	var versions map[string]int64
	behind := func() []string {
		var out []string
		for _, a := range v.at.agents.all() {
			if v, ok := versions[a]; !ok || v < version {
				out = append(out, a)
			}
		}
		return out
	}
	return v.at.wait(ctx, func(ctx context.Context) (bool, error) {
		var err error
		versions, err = v.All(ctx)
		return err == nil && len(behind()) == 0, err
	}, func() ([]string, string) {
		return behind(), fmt.Sprintf("version %d", version)
	}, "version")
}
