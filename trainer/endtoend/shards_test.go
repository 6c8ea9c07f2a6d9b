package endtoend

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// sampler replaces an SGLang server. It samples with the weights of the folder that a request names.
type sampler struct {
	t       *testing.T
	mu      sync.Mutex
	device  *torch.Device
	model   *model.Model
	version string
	loads   int
}

type samplerRequest struct {
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

// serveSampler starts a sampler and returns the engine setting of an agent.
func serveSampler(t *testing.T, agent string) (s *sampler, engine string) {
	t.Helper()
	device, err := torch.Open("cpu", 1)
	if err != nil {
		t.Fatal(err)
	}
	s = &sampler{t: t, device: device}
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		server.Close()
		if s.model != nil {
			s.model.Close(t.Context())
		}
		device.Close()
	})
	return s, fmt.Sprintf("agents.%s.engine={kind: sglang, url: [%q], weights: {path: %q, dtype: fp32}, checkpoint_activations: true}", agent, server.URL, t.TempDir())
}

func (s *sampler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var q samplerRequest
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

func (s *sampler) load(q samplerRequest) error {
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
	return err
}

func (s *sampler) generate(q samplerRequest) (map[string]any, error) {
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

// An agent whose weights do not fit one device samples on a server. The server's log-probs equal the ones that the agent's devices
// compute together, before and during training. A sub-agent that is frozen after its cold start keeps its shares for checkpoints.
// The same run again gives the same bits, and three devices can resume the run of two. The devices divide the experts of a mixture.
func TestShards(t *testing.T) {
	for name, more := range map[string][]string{
		"team": nil, "main_only": {"run.arm=main_only"},
		"mixture": {"agents.researcher.model={family: qwen3_moe, width: 32, layers: 2, heads: 4, kv_heads: 2, head_dim: 8, ffn: 64, experts: 4, experts_per_token: 2, expert_ffn: 16}",
			"grpo.rollouts=8", "task.queries_per_step=4"}, // enough that the rewards of some group differ
		"hybrid": {"agents.researcher.model={family: lfm2, width: 32, layers: 4, heads: 2, kv_heads: 1, head_dim: 16, ffn: 64}", "grpo.rollouts=8", "task.queries_per_step=4"},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(size int, dir string, steps int, o trainer.TrainOptions) *recorder {
				server, engine := serveSampler(t, "researcher")
				sets := append(onRanks(1), engine, "agents.researcher.shard=full",
					fmt.Sprintf("agents.researcher.devices=[%s]", strings.Join(slices.Repeat([]string{"cpu"}, size), ", ")), fmt.Sprintf("run.steps=%d", steps))
				seen := mustTrain(t, load(t, dir, append(sets, more...)...), o)
				if server.loads < 1 {
					t.Error("the server received no weights")
				}
				return seen
			}
			dir, again := t.TempDir(), t.TempDir()
			seen := run(2, dir, 1, trainer.TrainOptions{})
			if name != "main_only" {
				run(2, again, 1, trainer.TrainOptions{})
				sameWeights(t, digests(t, again, 1), digests(t, dir, 1))
				if v := seen.find(t, "step", 1, "researcher").Values; v["grad_norm"] == 0 || !(v["gap_mean"] < 1e-4) {
					t.Errorf("gradient norm %v, and a gap of %v between server and trainer", v["grad_norm"], v["gap_mean"])
				}
			}
			run(3, dir, 2, trainer.TrainOptions{Resume: true})
		})
	}
}
