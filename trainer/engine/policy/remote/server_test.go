package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
)

const vocabulary = 64

// logitsOf computes the model that the trainer and the servers of these tests run. Its weights are one number, and a training step changes
// log-probs by some hundredths.
func logitsOf(weights int64, prefix []int32) []float32 {
	h := fnv.New64a()
	for _, id := range prefix {
		h.Write([]byte{byte(id), byte(id >> 8)})
	}
	rng := rand.New(rand.NewPCG(h.Sum64(), 1))
	out := make([]float32, vocabulary)
	for i := range out {
		out[i] = float32(2*rng.NormFloat64() + 0.01*float64(weights)*rng.NormFloat64())
	}
	return out
}

func logProb(logits []float32, id int32, temperature float64) float64 {
	return (&trainerLogits{[][]float32{logits}}).logProb(0, id, temperature)
}

// trainer is a trainer whose weights the test changes.
type trainer struct {
	weights int64
	fixed   bool
}

func (t *trainer) Frozen() bool { return t.fixed }

func (t *trainer) Write(_ context.Context, dir string) error {
	if err := os.Mkdir(dir, 0o777); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "weights"), strconv.AppendInt(nil, t.weights, 10), 0o666)
}

func (t *trainer) Logits(_ context.Context, ids []int32, ends []int) (out [][]float32, err error) {
	for _, end := range ends {
		out = append(out, logitsOf(t.weights, ids[:end]))
	}
	return out, nil
}

// server answers as vLLM 0.25.1 and SGLang 0.5.16 did, except for a fault that a test sets.
type server struct {
	t       *testing.T
	kind    Kind
	address string
	http    *http.Server

	mu      sync.Mutex
	weights int64
	stamp   string // version of the weights that the server reports; a new process has its initial one
	paused  bool
	events  []string
	broken  string              // name of its fault
	reply   func([]byte) []byte // changes replies to requests for tokens; may be nil
	before  func()              // called before a request for tokens is answered; may be nil
	stops   map[int32]bool      // ids at which it stops although the request does not list them
	asked   []map[string]any    // sampling parameters of requests for more than one token
}

func newServer(t *testing.T, kind Kind) *server {
	s := &server{t: t, kind: kind, address: "127.0.0.1:0", stamp: map[Kind]string{SGLang: "default"}[kind], weights: 1000}
	s.start()
	t.Cleanup(s.kill)
	return s
}

func (s *server) url() string { return "http://" + s.address }

func (s *server) start() {
	listener, err := net.Listen("tcp", s.address)
	if err != nil {
		s.t.Error(err)
		return
	}
	s.address = listener.Addr().String()
	s.http = &http.Server{Handler: s.routes()}
	go s.http.Serve(listener)
}

// kill ends the process and its connections.
func (s *server) kill() { s.http.Close() }

// restart starts a new process at the same address with the initial weights.
func (s *server) restart() {
	s.mu.Lock()
	s.weights, s.stamp = 1000, map[Kind]string{SGLang: "default"}[s.kind]
	s.mu.Unlock()
	s.start()
}

func (s *server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	say := func(w http.ResponseWriter, v any) {
		if err := json.NewEncoder(w).Encode(v); err != nil {
			s.t.Error(err)
		}
	}
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	if s.kind == VLLM {
		mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { say(w, map[string]string{"version": "0.25.1"}) })
		mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
			say(w, map[string]any{"data": []any{map[string]any{"id": "policy", "max_model_len": 40}}})
		})
		mux.HandleFunc("POST /pause", func(_ http.ResponseWriter, r *http.Request) { s.set(func() { s.paused = true }); s.event("/pause") })
		mux.HandleFunc("POST /resume", func(_ http.ResponseWriter, r *http.Request) { s.set(func() { s.paused = false }); s.event("/resume") })
		mux.HandleFunc("POST /reset_prefix_cache", func(_ http.ResponseWriter, r *http.Request) { s.event("/reset_prefix_cache") })
		mux.HandleFunc("POST /collective_rpc", s.rpc)
		mux.HandleFunc("POST /inference/v1/generate", s.generate)
		return mux
	}
	mux.HandleFunc("GET /server_info", func(w http.ResponseWriter, _ *http.Request) {
		say(w, map[string]any{"version": "0.5.16", "context_length": 48, "max_req_input_len": 48})
	})
	mux.HandleFunc("GET /model_info", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.broken == "no versions" {
			say(w, map[string]any{"model_path": "x"})
			return
		}
		say(w, map[string]any{"weight_version": s.stamp})
	})
	mux.HandleFunc("POST /update_weights_from_disk", func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Path    string `json:"model_path"`
			Version string `json:"weight_version"`
			Flush   bool   `json:"flush_cache"`
		}
		json.NewDecoder(r.Body).Decode(&body)
		if err := s.load(body.Path, body.Version); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			say(w, map[string]any{"success": false, "message": err.Error()})
			return
		}
		if body.Flush {
			s.event("flush_cache")
		}
		say(w, map[string]any{"success": true, "message": "Succeeded to update model weights."})
	})
	mux.HandleFunc("POST /generate", s.generate)
	return mux
}

func (s *server) event(what string) { s.set(func() { s.events = append(s.events, what) }) }

func (s *server) load(folder, stamp string) error {
	text, err := os.ReadFile(filepath.Join(folder, "weights"))
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, "load")
	if s.broken == "reports the old version" {
		return nil
	}
	if s.broken != "stale" {
		s.weights, _ = strconv.ParseInt(string(text), 10, 64)
	}
	s.stamp = stamp
	return nil
}

func (s *server) rpc(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Method string   `json:"method"`
		Args   []string `json:"args"`
	}
	json.NewDecoder(r.Body).Decode(&body)
	s.mu.Lock()
	broken := s.broken
	s.mu.Unlock()
	switch broken {
	case "no development mode":
		http.Error(w, `{"detail":"Not Found"}`, http.StatusNotFound)
		return
	case "no extension":
		http.Error(w, "Internal Server Error", http.StatusInternalServerError)
		return
	case "slow load":
		if body.Method == "mgrpo_load" {
			s.event("loading")
			<-r.Context().Done()
			return
		}
	}
	result := map[string]string{}
	if body.Method == "mgrpo_load" {
		if err := s.load(body.Args[0], body.Args[1]); err != nil {
			result["error"] = err.Error()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if result["error"] == "" {
		result["stamp"] = s.stamp
	}
	results := []any{result}
	if broken == "workers apart" {
		results = append(results, map[string]string{"stamp": "mgrpo.other"})
	}
	json.NewEncoder(w).Encode(map[string]any{"results": results})
}

// request is a request for tokens, with the names of both kinds of servers.
type request struct {
	TokenIDs []int32        `json:"token_ids"`
	InputIDs []int32        `json:"input_ids"`
	Params   map[string]any `json:"sampling_params"`
}

func (s *server) generate(w http.ResponseWriter, r *http.Request) {
	var body request
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	before, change := s.before, s.reply
	s.mu.Unlock()
	if before != nil {
		before()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused {
		s.t.Error("a paused server got a request for tokens")
	}
	prefix := append(body.TokenIDs, body.InputIDs...)
	most, name := 0, map[Kind]string{VLLM: "max_tokens", SGLang: "max_new_tokens"}[s.kind]
	most = int(body.Params[name].(float64))
	if most > 1 {
		s.asked = append(s.asked, body.Params)
	}
	out := s.encode(s.sample(prefix, body.Params, most))
	if change != nil {
		out = change(out)
	}
	w.Write(out)
}

// sample draws tokens with the request's seed, and returns them with the log-probs that the server reports.
func (s *server) sample(prefix []int32, params map[string]any, most int) (ids []int32, logProbs []float64) {
	temperature := params["temperature"].(float64)
	seed := params[map[Kind]string{VLLM: "seed", SGLang: "sampling_seed"}[s.kind]].(float64)
	stops := map[int32]bool{}
	for _, id := range params["stop_token_ids"].([]any) {
		stops[int32(id.(float64))] = true
	}
	rng := rand.New(rand.NewPCG(uint64(seed), 3))
	for len(ids) < most {
		logits := logitsOf(s.weights, prefix)
		id, u := int32(0), rng.Float64()
		for id = 0; id < vocabulary-1; id++ {
			if u -= math.Exp(logProb(logits, id, temperature)); u < 0 {
				break
			}
		}
		shown := temperature
		if s.broken == "raw" {
			shown = 1
		}
		prefix, ids = append(prefix, id), append(ids, id)
		logProbs = append(logProbs, logProb(logits, id, shown))
		if stops[id] || s.stops[id] {
			break
		}
	}
	return ids, logProbs
}

func (s *server) encode(ids []int32, logProbs []float64) []byte {
	if s.kind == VLLM {
		var content []any
		for i, id := range ids {
			content = append(content, map[string]any{"token": fmt.Sprintf("token_id:%d", id), "logprob": logProbs[i], "top_logprobs": []any{}})
		}
		out, _ := json.Marshal(map[string]any{"request_id": "generate-tokens-1", "choices": []any{map[string]any{
			"index": 0, "finish_reason": "stop", "token_ids": ids, "logprobs": map[string]any{"content": content}}}})
		return out
	}
	var pairs []any
	for i, id := range ids {
		pairs = append(pairs, []any{logProbs[i], id, nil})
	}
	out, _ := json.Marshal(map[string]any{"text": "", "output_ids": ids, "meta_info": map[string]any{
		"finish_reason": map[string]any{"type": "stop"}, "weight_version": s.stamp, "output_token_logprobs": pairs}})
	return out
}
