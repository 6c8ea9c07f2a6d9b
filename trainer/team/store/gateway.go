package store

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// gatewayScript stores the address of an agent's gateway, and the run's secret if there is none yet, and returns the
// secret. KEYS: epochs, events, gateway. ARGV: agent, fencing token, address, a new secret.
var gatewayScript = redis.NewScript(fence + `
redis.call('HSETNX', KEYS[3], ':secret', ARGV[4])
redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])
announce(KEYS[2], 'gateway')
return {'new', redis.call('HGET', KEYS[3], ':secret')}
`)

// PublishGateway stores the URL of the agent's gateway. It returns the secret with which the run's workers sign the keys of
// programs. If the run does not have a secret yet, it is `fresh`.
func (m *Member) PublishGateway(ctx context.Context, url, fresh string) (secret string, err error) {
	reply, err := m.write(ctx, gatewayScript, "the gateway's address", []string{m.key("events", m.agent), m.key("gateway")}, url, fresh)
	return word(reply, 1), err
}

// Gateway returns the URL of another agent's gateway, or "" if it is not published yet.
func (m *Member) Gateway(ctx context.Context, agent string) (url string, err error) {
	c := redis.NewStringCmd(ctx, "hget", m.key("gateway"), agent)
	if err := m.batches.do(ctx, c); err != nil && !errors.Is(err, redis.Nil) {
		return "", err
	}
	return c.Val(), nil
}
