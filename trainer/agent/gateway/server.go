package gateway

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
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

// clientRequest is a request of a client.
type clientRequest struct {
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
	answer(in clientRequest, a *AgentServer, c turnCall) error
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
	for path, h := range map[string]func(clientRequest) error{
		"POST /v1/chat/completions": func(in clientRequest) error { return s.serve(in, &chatRequest{}) },
		"POST /v1/completions":      func(in clientRequest) error { return s.serve(in, &textRequest{}) },
		"POST /v1/responses":        func(in clientRequest) error { return s.serve(in, &responsesTurn{}) },
		"GET /v1/models":            s.serveModels,
		"GET /v1/models/{model...}": s.serveModels,
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

// Mux is a server to which handlers are added, such as an http.ServeMux.
type Mux interface{ Handle(string, http.Handler) }

// Mount adds the server's paths to mux.
func (s *Server) Mount(mux Mux) {
	mux.Handle("/v1/", s)
	mux.Handle("/r/", s)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// handle registers the handler of a path. If the handler returns an error before the first byte of a reply, the client
// receives the error.
func (s *Server) handle(pattern string, h func(clientRequest) error) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		key := r.PathValue("key")
		if key == "" {
			key = bearer(r)
		}
		if err := h(clientRequest{w: w, r: r, key: key}); err != nil && r.Context().Err() == nil {
			toAPIError(err).write(w)
		}
	})
}

// serve reads a request and lets its agent answer it, here or at the agent's own worker.
func (s *Server) serve(in clientRequest, request turnRequest) error {
	ticket, round, agents, err := s.admit(in)
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
		return round.unknownAgent(name)
	}
	c, err := turnCallOf(in.r, ticket)
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

// turnCallOf reads the request's headers that concern the call.
func turnCallOf(r *http.Request, t Ticket) (turnCall, error) {
	c := turnCall{ticket: t, repeat: -1}
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

// readBody reads a request's body. The client has one minute to send it.
func readBody(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Now().Add(time.Minute)) // a test's recorder does not support deadlines
	defer func() { _ = c.SetReadDeadline(time.Time{}) }()
	return io.ReadAll(http.MaxBytesReader(w, r.Body, most))
}

// jsonObject is a JSON object of a reply.
type jsonObject = map[string]any

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
