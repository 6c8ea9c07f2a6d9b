package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxBody is the largest number of bytes in a request.
const maxBody = 16 << 20

// Headers of the gateway.
const (
	// callHeader is the ordinal of a call, from 0, among parallel calls of a program with equal prompts.
	callHeader = "X-Mgrpo-Call"

	anchorHeader    = "X-Mgrpo-Anchor"    // from the first server, for the worker of another agent
	forwardedHeader = "X-Mgrpo-Forwarded" // a request is forwarded only once
	retryHeader     = "X-Stainless-Retry-Count"
)

// Round holds the facts about a run's round that its processes share.
type Round struct {
	Run, Name string // Name is random
	Open      bool   // any client may send requests, and none are stored; Token is the key, "" means no key
	Token     string
	Secret    Secret
	Agents    []string                                                  // all agents of the team, the main agent first
	Address   func(ctx context.Context, agent string) (*url.URL, error) // the address of an agent's worker; nil: all agents work here
	Transport http.RoundTripper                                         // for requests to other workers; nil: http.DefaultTransport
	Hosted    map[string]Upstream                                       // agents whose models are behind other APIs; only in an open round
}

// incoming is a request of a client.
type incoming struct {
	w     http.ResponseWriter
	r     *http.Request
	key   string // the client's API key
	body  []byte
	round Round // the round for which the key is valid
}

// turnRequest is the body of a request for a turn. The other methods may be called after decode.
type turnRequest interface {
	decode(body []byte) error // reads and checks the body
	model() string            // name of the agent
	task() string             // text that identifies the main agent's call to which the request belongs
	answer(in incoming, a *AgentServer, c call) error
}

// Server is the gateway of a process. It is an http.Handler for /v1/ and /r/.
type Server struct {
	mu     sync.Mutex
	round  Round
	agents map[string]*AgentServer
	mux    *http.ServeMux
}

// NewServer returns a server that does not serve any agents yet.
func NewServer() *Server {
	s := &Server{mux: http.NewServeMux()}
	for path, h := range map[string]func(incoming) error{
		"POST /v1/chat/completions": func(in incoming) error { return s.serve(in, &chatRequest{}) },
		"POST /v1/completions":      func(in incoming) error { return s.serve(in, &textRequest{}) },
		"POST /v1/responses":        func(in incoming) error { return s.serve(in, &responsesTurn{}) },
		"GET /v1/models":            s.serveModels,
		"GET /v1/models/{model...}": s.serveModel,
	} {
		s.handle(path, h)
		method, rest, _ := strings.Cut(path, " ")
		s.handle(method+" /r/{key}"+rest, h)
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(404, "not_found", "%s %s: there are POST /v1/chat/completions, POST /v1/completions, POST /v1/responses and GET /v1/models",
			r.Method, r.URL.Path).write(w)
	})
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// handle registers the handler of a path. If the handler returns an error before the first byte of a reply, the client
// receives the error.
func (s *Server) handle(pattern string, h func(incoming) error) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		key := r.PathValue("key")
		if key == "" {
			key, _ = strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		}
		if err := h(incoming{w: w, r: r, key: key}); err != nil && r.Context().Err() == nil {
			asAPI(err).write(w)
		}
	})
}

// BeginRound joins a round with the agents that work here. It replaces the previous round, whose tickets become invalid.
func (s *Server) BeginRound(r Round, agents []*AgentServer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.round, s.agents = r, map[string]*AgentServer{}
	for _, a := range agents {
		s.agents[a.Name] = a
	}
}

// now returns the round and the agents that work here.
func (s *Server) now() (Round, map[string]*AgentServer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.round, s.agents
}

// admit checks the key of a request and returns its ticket.
func (s *Server) admit(key string) (Ticket, Round, map[string]*AgentServer, error) {
	round, agents := s.now()
	if len(agents) == 0 {
		return Ticket{}, round, nil, busy("the run has not begun here yet")
	}
	if round.Open {
		if round.Token != "" && !sameText(key, round.Token) {
			return Ticket{}, round, nil, refuse(401, "invalid_api_key", "the API key is not the server's token")
		}
		return Ticket{Phase: OpenPhase, Query: rand.Text(), Attempt: 1}, round, agents, nil
	}
	t, err := round.Secret.ticket(key, time.Now())
	if err != nil || t.Run != round.Run {
		return t, round, nil, refuse(401, "invalid_api_key", "%v: use the key in the program's environment variable OPENAI_API_KEY", orForeign(err))
	}
	if t.Round != round.Name {
		return t, round, nil, errOver
	}
	return t, round, agents, nil
}

func orForeign(err error) error {
	if err == nil {
		return errKey
	}
	return err
}

// serveModels lists the agents.
func (s *Server) serveModels(in incoming) error {
	_, round, _, err := s.admit(in.key)
	if err != nil {
		return err
	}
	list := make([]map[string]any, len(round.Agents))
	for i, name := range round.Agents {
		list[i] = modelObject(name)
	}
	return writeJSON(in.w, map[string]any{"object": "list", "data": list})
}

// serveModel describes one agent.
func (s *Server) serveModel(in incoming) error {
	_, round, _, err := s.admit(in.key)
	if err != nil {
		return err
	}
	name := in.r.PathValue("model")
	if !slices.Contains(round.Agents, name) {
		return round.noAgent(name)
	}
	return writeJSON(in.w, modelObject(name))
}

func modelObject(name string) map[string]any {
	return map[string]any{"id": name, "object": "model", "created": 0, "owned_by": "mgrpo"}
}

// noAgent returns the refusal of a name that is not an agent's.
func (r *Round) noAgent(name string) error {
	return refuse(404, "model_not_found", "there is no agent %q. Agents: %s", name, strings.Join(r.Agents, ", "))
}

// serve reads a request and lets its agent answer it, here or at the agent's own worker.
func (s *Server) serve(in incoming, request turnRequest) error {
	ticket, round, agents, err := s.admit(in.key)
	if err != nil {
		return err
	}
	in.round = round
	if in.body, err = readBody(in.w, in.r, maxBody); err != nil {
		return err
	}
	if to, ok := round.upstream(in.body); ok { // the other server decides which fields it accepts
		return to.serve(in)
	}
	if err := request.decode(in.body); err != nil {
		return err
	}
	name := request.model()
	if !slices.Contains(round.Agents, name) {
		return round.noAgent(name)
	}
	c, err := callOf(in.r, ticket)
	if err != nil {
		return err
	}
	c.size = len(in.body)
	if main := agents[round.Agents[0]]; main != nil && name != main.Name {
		c.anchor = main.anchorOf(ticket, request.task())
	}
	if a := agents[name]; a != nil {
		if round.Open {
			defer a.forget(ticket)
		}
		return request.answer(in, a, c)
	}
	return in.forward(name, c.anchor)
}

// callOf reads the request's headers that concern the call.
func callOf(r *http.Request, t Ticket) (call, error) {
	c := call{ticket: t, repeat: -1}
	if text := r.Header.Get(callHeader); text != "" {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return c, refuse(400, "invalid_request", "%s: %q is not a number from 0 to 65535", callHeader, text)
		}
		c.repeat = int(n)
	}
	if n, err := strconv.Atoi(r.Header.Get(retryHeader)); err == nil {
		c.retried = n > 0
	}
	turn, at, _ := strings.Cut(r.Header.Get(anchorHeader), ".")
	c.anchor.Turn, _ = strconv.Atoi(turn) // both are 0 if no other server forwarded the request
	c.anchor.Call, _ = strconv.Atoi(at)
	return c, nil
}

// forward passes the request on to the worker of its agent. at is the anchor of a new conversation.
func (in incoming) forward(name string, at anchor) error {
	// A worker that receives another worker's request for a third agent was reached at a wrong address.
	if in.round.Address == nil || in.r.Header.Get(forwardedHeader) != "" {
		return refuse(404, "model_not_found", "%s does not work here; is gateway.advertise the address of its own worker?", name)
	}
	to, err := in.round.Address(in.r.Context(), name)
	if err != nil {
		return busy("%s: %v", name, err)
	}
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(to)
			p.Out.URL.Path = to.Path + p.In.URL.Path[strings.LastIndex(p.In.URL.Path, "/v1/"):]
			p.Out.URL.RawPath = ""
			p.Out.Header.Set("Authorization", "Bearer "+in.key)
			p.Out.Header.Set(forwardedHeader, "1")
			p.Out.Header.Set(anchorHeader, strconv.Itoa(at.Turn)+"."+strconv.Itoa(at.Call))
			p.Out.Body, p.Out.ContentLength = io.NopCloser(bytes.NewReader(in.body)), int64(len(in.body))
		},
		Transport: in.round.Transport, FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			busy("%s's worker at %s does not answer: %v", name, to.Host, err).write(w)
		},
	}
	proxy.ServeHTTP(in.w, in.r)
	return nil
}

// OpenPhase is the phase of the requests in an open round. The agents begin it.
const OpenPhase = "open"

// forget drops an attempt of an open round.
func (a *AgentServer) forget(t Ticket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.phases[t.Phase]; p != nil {
		if at := p.attempts[t.rollout()]; at != nil {
			at.cancel(errOver)
			delete(p.attempts, t.rollout())
		}
	}
}

// anchorOf finds the call of a, the main agent, to which a sub-agent's conversation with this task belongs.
func (a *AgentServer) anchorOf(t Ticket, task string) anchor {
	a.mu.Lock()
	var at *attempt
	if p := a.phases[t.Phase]; p != nil {
		at = p.attempts[t.rollout()]
	}
	a.mu.Unlock()
	if at == nil || at.number != t.Attempt {
		return anchor{}
	}
	return at.anchorOf(task)
}

// readBody reads a request's body. The client has one minute to send it.
func readBody(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Now().Add(time.Minute)) // a test's recorder does not support deadlines
	defer func() { _ = c.SetReadDeadline(time.Time{}) }()
	return io.ReadAll(http.MaxBytesReader(w, r.Body, most))
}

func writeJSON(w http.ResponseWriter, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b.Bytes()) // if it fails, the client has gone
	return nil
}
