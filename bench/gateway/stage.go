package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/dialect"
	"github.com/mgrpo/mgrpo/trainer/agent/gateway"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/local"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

const (
	name = "solver" // of the agent
	next = "Go on." // the message after each turn
)

var secret = gateway.Secret(bytes.Repeat([]byte{1}, gateway.SecretSize))

// stage is an engine that both kinds of conversations use.
type stage struct {
	results   Results
	tokenizer *tokenizer.Tokenizer
	chat      *agent.Chat
	device    *torch.Device
	model     *model.Model
	engine    policy.Policy
	agent     *gateway.AgentServer
	server    *httptest.Server
	client    *http.Client
	version   int64
}

func openStage(ctx context.Context, r Results, threads int) (s *stage, err error) {
	s = &stage{results: r}
	if s.tokenizer, err = tokenizer.Load("testdata/tokenizer/smollm2"); err != nil {
		return nil, err
	}
	if s.chat, err = agent.NewChat(agent.ChatOptions{Tokenizer: s.tokenizer}); err != nil {
		return nil, err
	}
	config := arch.Config{Family: arch.Llama, VocabSize: s.tokenizer.VocabSize(), Hidden: r.Width, Layers: r.Layers, Heads: r.Width / 32,
		KVHeads: r.Width / 32, HeadDim: 32, FFN: 4 * r.Width, RMSEps: 1e-5, Rope: arch.Rope{Theta: 1e4}, MaxPosition: 1024, Tied: true,
		Tokens: arch.SpecialTokens{EOS: []int32{s.tokenizer.EOS()}}}
	if s.device, err = torch.Open("cpu", threads); err != nil {
		return nil, err
	}
	if s.model, err = model.Random(ctx, s.device, config, 1, model.Options{Compute: torch.Float32}); err != nil {
		return nil, err
	}
	tenantOpt := local.TenantOptions{TokenBytes: s.tokenizer.TokenBytes}
	if s.engine, err = local.OpenTenant(ctx, s.model, local.Options{Slots: r.Conversations}, tenantOpt); err != nil {
		return nil, err
	}
	s.agent = gateway.NewAgentServer(gateway.AgentOptions{Name: name, Main: true, Seed: 1, Policy: endedPolicy{s.engine}, Tokenizer: s.tokenizer,
		Limits: s.limits()})
	endpoint := gateway.NewServer()
	endpoint.BeginRound(gateway.Round{Run: "bench", Name: "round", Secret: secret, Agents: []string{name}}, []*gateway.AgentServer{s.agent})
	s.server = httptest.NewServer(endpoint)
	s.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: r.Conversations}}
	return s, nil
}

func (s *stage) close(ctx context.Context) error {
	s.client.CloseIdleConnections()
	s.server.Close()
	return errors.Join(s.engine.Close(ctx), s.model.Close(ctx), s.device.Close())
}

func (s *stage) limits() agent.Limits { return agent.Limits{TurnTokens: s.results.TurnTokens} }

// endedPolicy reports turns that reached their token limit as ended, because a model with random weights does not end a turn.
type endedPolicy struct{ policy.Policy }

func (w endedPolicy) Generate(ctx context.Context, r policy.Request) (policy.Completion, error) {
	out, err := w.Policy.Generate(ctx, r)
	if out.Finish == policy.FinishLength {
		out.Finish = policy.FinishStop
	}
	return out, err
}

// playResult is the result of one run.
type playResult struct {
	took   time.Duration
	tokens int // sampled
}

func (p playResult) speed() float64 { return float64(p.tokens) / p.took.Seconds() }

// pair plays the conversations of a step in both ways and compares their tokens. The order of the two alternates between steps.
func (s *stage) pair(ctx context.Context, step int64) (own, through playResult, err error) {
	var tokens [2][][]int32
	ways := []func() error{
		func() (err error) { own, tokens[0], err = s.play(ctx, step, s.own); return err },
		func() (err error) { through, tokens[1], err = s.play(ctx, step, s.through); return err },
	}
	if step%2 == 1 {
		slices.Reverse(ways)
	}
	for _, play := range ways {
		if err := play(); err != nil {
			return own, through, err
		}
	}
	for i := range tokens[0] {
		if !slices.Equal(tokens[0][i], tokens[1][i]) {
			return own, through, fmt.Errorf("conversation %d: the gateway's tokens differ from agent.Run's", i)
		}
	}
	return own, through, nil
}

// play holds all conversations at once, with an engine that has cached none of them, and returns the tokens of each.
func (s *stage) play(ctx context.Context, step int64, converse func(ctx context.Context, step int64, i int) (agent.Trajectory, error)) (p playResult,
	tokens [][]int32, err error) {
	s.version++
	if err := s.engine.UpdateWeights(ctx, s.version); err != nil { // clears its cache
		return p, nil, err
	}
	phase := phaseOf(step)
	s.agent.Begin(phase, gateway.Rules{Step: step, Sampling: policy.Sampling{Temperature: 1}})
	defer s.agent.End(phase)
	said := make([]agent.Trajectory, s.results.Conversations)
	start := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	for i := range said {
		g.Go(func() (err error) {
			said[i], err = converse(gctx, step, i)
			return err
		})
	}
	err = g.Wait()
	p.took = time.Since(start)
	for _, t := range said {
		p.tokens += t.SampledTokens()
		tokens = append(tokens, t.Tokens)
	}
	return p, tokens, err
}

func phaseOf(step int64) string { return fmt.Sprintf("step-%d", step) }

func query(i int) string { return fmt.Sprintf("query-%d", i) }

// task returns the first message of conversation i. Each is different, so no two share a prefix.
func task(i int) string { return fmt.Sprintf("Tell me about number %d, and nothing else.", i) }

// longChat is a chat that continues after each turn except the last.
type longChat struct {
	*agent.Chat
	turnsLeft int
}

func (g *longChat) Parse(turn []int32) dialect.Action {
	if g.turnsLeft--; g.turnsLeft == 0 {
		return g.Chat.Parse(turn)
	}
	return dialect.Action{Calls: []dialect.Call{{Name: "next"}}}
}

// nextTool is a tool whose result asks for the next turn.
type nextTool struct{}

func (nextTool) Name() string                                          { return "next" }
func (nextTool) Description() string                                   { return "" }
func (nextTool) Schema() json.RawMessage                               { return nil }
func (nextTool) Call(context.Context, json.RawMessage) (string, error) { return next, nil }

// own holds a conversation with agent.Run, as a run does.
func (s *stage) own(ctx context.Context, step int64, i int) (agent.Trajectory, error) {
	return agent.Run(ctx, agent.Spec{Key: policy.Key{RunSeed: 1, Step: step, Query: query(i), Agent: name}, Main: true, Task: task(i),
		Dialect:  &longChat{s.chat, s.results.Turns},
		Sampling: policy.Sampling{Temperature: 1}, Limits: s.limits()},
		agent.Env{Policy: endedPolicy{s.engine}, Tools: map[string]tool.Tool{"next": nextTool{}}})
}

// message is a message of a chat.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// through holds a conversation over HTTP, as a program does.
func (s *stage) through(ctx context.Context, step int64, i int) (t agent.Trajectory, err error) {
	ticket := gateway.Ticket{Run: "bench", Round: "round", Phase: phaseOf(step), Query: query(i), Attempt: 1, Deadline: time.Now().Add(time.Hour).Unix()}
	key := secret.Key(ticket)
	messages := []message{{"user", task(i)}}
	for turn := range s.results.Turns {
		if turn > 0 {
			messages = append(messages, message{"tool", next})
		}
		said, err := s.ask(ctx, key, messages)
		if err != nil {
			return t, err
		}
		messages = append(messages, said)
	}
	kept, err := s.agent.Finish(ticket)
	if err != nil {
		return t, err
	}
	if len(kept) != 1 || len(kept[0].Rows) != 1 {
		return t, fmt.Errorf("conversation %d has %d invocations", i, len(kept))
	}
	return agent.Trajectory{Row: kept[0].Rows[0]}, nil
}

func (s *stage) ask(ctx context.Context, key string, messages []message) (said message, err error) {
	body, err := json.Marshal(map[string]any{"model": name, "messages": messages})
	if err != nil {
		return said, err
	}
	r, err := http.NewRequestWithContext(ctx, "POST", s.server.URL+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return said, err
	}
	r.Header.Set("Authorization", "Bearer "+key)
	resp, err := s.client.Do(r)
	if err != nil {
		return said, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return said, err
	}
	var answer struct {
		Choices []struct{ Message message }
	}
	if err := json.Unmarshal(text, &answer); err != nil || len(answer.Choices) != 1 {
		return said, fmt.Errorf("%s: %.200q", resp.Status, text)
	}
	return answer.Choices[0].Message, nil
}
