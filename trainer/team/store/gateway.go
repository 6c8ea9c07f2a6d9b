package store

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// gatewayScript stores the address of an agent's gateway, and the run's secret if it has none, and returns the secret.
// KEYS: epochs, events, gateway. ARGV: agent, fencing token, address, a new secret.
var gatewayScript = redis.NewScript(fence + `
redis.call('HSETNX', KEYS[3], ':secret', ARGV[4])
redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])
announce(KEYS[2], 'gateway')
return {'new', redis.call('HGET', KEYS[3], ':secret')}
`)

// PublishGateway says at which URL the agent's gateway is, and returns the secret with which the run's workers sign the
// keys of programs: fresh, if the run has none yet.
func (m *Member) PublishGateway(ctx context.Context, url, fresh string) (secret string, err error) {
	reply, err := m.write(ctx, gatewayScript, "the gateway's address", []string{m.key("events", m.agent), m.key("gateway")}, url, fresh)
	return word(reply, 1), err
}

// Gateway returns the URL of another agent's gateway, "" if it has not said it yet.
func (m *Member) Gateway(ctx context.Context, agent string) (url string, err error) {
	c := redis.NewStringCmd(ctx, "hget", m.key("gateway"), agent)
	if err := m.batches.do(ctx, c); err != nil && !errors.Is(err, redis.Nil) {
		return "", err
	}
	return c.Val(), nil
}
