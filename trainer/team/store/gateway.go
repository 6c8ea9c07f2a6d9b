package store

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// Gateways holds the addresses at which programs talk to the models of the agents.
type Gateways struct{ at *place }

// Publish stores the URL of the agent's gateway. It returns the run's secret, with which workers sign the keys of programs.
// If the run does not have a secret yet, `fresh` becomes the secret.
func (g *Gateways) Publish(ctx context.Context, url, fresh string) (secret string, err error) {
	reply, err := g.at.write(ctx, gatewayScript, "the gateway's address", values{"events": g.at.key("events", g.at.agent), "gateway": g.at.key("gateway"),
		"address": url, "fresh": fresh})
	return replyText(reply, 1), err
}

// URL returns the URL of another agent's gateway, or "" if it is not published yet.
func (g *Gateways) URL(ctx context.Context, agent string) (url string, err error) {
	c := redis.NewStringCmd(ctx, "hget", g.at.key("gateway"), agent)
	if err := g.at.batches.do(ctx, c); err != nil && !errors.Is(err, redis.Nil) {
		return "", err
	}
	return c.Val(), nil
}
