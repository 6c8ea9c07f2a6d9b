// Package hosted holds conversations with a model on another party's server behind an OpenAI-compatible API. The API
// exchanges only messages. It gives no access to tokens, log-probs or weights, so the agent takes part in rollouts but
// is never trained.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package hosted

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/mgrpo/mgrpo/trainer/agent/openai"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// Model is a model behind an API. Any number of conversations may use it at once.
type Model struct {
	client  *openai.Client
	name    string
	version atomic.Int64

	mu       sync.Mutex
	stats    policy.Stats
	inFlight int // requests in flight
}

var _ policy.Lifecycle = (*Model)(nil)

// Open returns the model with the given name. It does not contact the server.
func Open(opt openai.Options, name string) (*Model, error) {
	client, err := openai.New(opt)
	if err != nil {
		return nil, fmt.Errorf("hosted model %s: %w", name, err)
	}
	return &Model{client: client, name: name}, nil
}

// UpdateWeights only stores the version: the weights of a hosted model never change.
func (m *Model) UpdateWeights(_ context.Context, version int64) error {
	m.version.Store(version)
	return nil
}

// Version returns the newest version passed to UpdateWeights.
func (m *Model) Version() int64 { return m.version.Load() }

// Deterministic returns false, because no server promises to repeat its replies.
func (m *Model) Deterministic() bool { return false }

// Stats returns the number of requests, and the number of tokens in those replies that report it.
func (m *Model) Stats() policy.Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}

// Close closes the connections.
func (m *Model) Close(context.Context) error {
	m.client.Close()
	return nil
}

// complete requests a completion and counts the request.
func (m *Model) complete(ctx context.Context, r openai.Request) (openai.Reply, error) {
	m.mu.Lock()
	m.stats.Requests++
	m.inFlight++
	m.stats.MaxInFlight = max(m.stats.MaxInFlight, m.inFlight)
	m.mu.Unlock()
	r.Model = m.name
	reply, err := m.client.Complete(ctx, r)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inFlight--
	if u := reply.Usage; u != nil {
		m.stats.PromptTokens += int64(u.Prompt)
		m.stats.SampledTokens += int64(u.Completion)
	}
	return reply, err
}
