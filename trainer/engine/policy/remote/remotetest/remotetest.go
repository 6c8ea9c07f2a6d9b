// Package remotetest stands in for an SGLang server in tests.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package remotetest

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// Server samples with the weights of the folder that an update names.
type Server struct {
	URL    string
	Loaded func(folder string) // called with the folder of each update; may be nil

	t       *testing.T
	mu      sync.Mutex
	device  *torch.Device
	model   *model.Model
	version string
	loads   int
}

type request struct {
	Path     string  `json:"model_path"`
	Version  string  `json:"weight_version"`
	IDs      []int32 `json:"input_ids"`
	Sampling struct {
		Temperature float64 `json:"temperature"`
		Most        int     `json:"max_new_tokens"`
		Seed        uint64  `json:"sampling_seed"`
		Stop        []int32 `json:"stop_token_ids"`
	} `json:"sampling_params"`
}

// Start starts a server that ends with the test.
func Start(t *testing.T) *Server {
	t.Helper()
	device, err := torch.Open("cpu", 1)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, device: device}
	server := httptest.NewServer(s)
	s.URL = server.URL
	t.Cleanup(func() {
		server.Close()
		if s.model != nil {
			s.model.Close(context.Background())
		}
		device.Close()
	})
	return s
}

// Loads returns the number of updates.
func (s *Server) Loads() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loads
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var q request
	var reply map[string]any
	var err error
	if r.Method == http.MethodPost {
		err = json.NewDecoder(r.Body).Decode(&q)
	}
	switch r.URL.Path {
	case "/server_info":
		reply = map[string]any{"version": "0.5.16", "context_length": 512}
	case "/model_info":
		reply = map[string]any{"weight_version": s.version}
	case "/update_weights_from_disk":
		if err == nil {
			err = s.load(q)
		}
		reply = map[string]any{"success": err == nil}
	case "/generate":
		if err == nil {
			reply, err = s.generate(q)
		}
	}
	if err != nil {
		s.t.Error(err)
		return
	}
	_ = json.NewEncoder(w).Encode(reply)
}

func (s *Server) load(q request) error {
	src, err := weights.Open(q.Path)
	if err != nil {
		return err
	}
	defer src.Close()
	if s.model != nil {
		if err := s.model.Close(s.t.Context()); err != nil {
			return err
		}
	}
	s.model, err = model.Load(s.t.Context(), s.device, src, model.Options{Compute: torch.Float32})
	s.version = q.Version
	s.loads++
	if s.Loaded != nil {
		s.Loaded(q.Path)
	}
	return err
}

func (s *Server) generate(q request) (map[string]any, error) {
	rng := rand.New(rand.NewPCG(q.Sampling.Seed, uint64(len(q.IDs))))
	ids, prompt := slices.Clone(q.IDs), len(q.IDs)
	logProbs := []any{}
	for len(ids) < prompt+q.Sampling.Most {
		rows, err := s.model.Logits(s.t.Context(), ids, []int{len(ids)})
		if err != nil {
			return nil, err
		}
		id, logProb := sampled(rows[0], q.Sampling.Temperature, rng.Float64())
		ids = append(ids, id)
		logProbs = append(logProbs, []any{logProb, id, nil})
		if slices.Contains(q.Sampling.Stop, id) {
			break
		}
	}
	return map[string]any{"output_ids": ids[prompt:], "meta_info": map[string]any{"weight_version": s.version, "output_token_logprobs": logProbs}}, nil
}

// sampled returns the token at a point of the cumulative distribution, and its log-prob.
func sampled(logits []float32, temperature, at float64) (id int32, logProb float64) {
	top := float64(slices.Max(logits))
	sum := 0.0
	for _, z := range logits {
		sum += math.Exp((float64(z) - top) / temperature)
	}
	for i, z := range logits {
		p := math.Exp((float64(z)-top)/temperature) / sum
		if at -= p; at < 0 || i == len(logits)-1 {
			return int32(i), math.Log(p)
		}
	}
	return 0, 0
}
