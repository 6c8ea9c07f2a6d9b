package endtoend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
)

// withColdStart creates a checkpoint of a team with a hosted agent by training it for zero steps.
func withColdStart(t *testing.T, a *api, name string) *config.Config {
	t.Helper()
	cfg := hostedTeam(t, a, name, t.TempDir(), "run.steps=0", "cold_start.steps=1")
	if err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: &recorder{}}); err != nil && !errors.Is(err, trainer.ErrNothingTrained) {
		t.Fatal(err)
	}
	return cfg
}

// TestChat checks that the main agent answers with the help of the other agent, that sub-task
// and answer are reported, and that questions do not affect each other.
func TestChat(t *testing.T) {
	cfg := withColdStart(t, startAPI(t), "planner")
	err := trainer.Chat(t.Context(), cfg, trainer.CheckpointOptions{}, func(ctx context.Context, c *trainer.TeamChat) error {
		if c.Questions != 4 || c.BindHeldOut(1).Answer != "7" {
			t.Errorf("%d held-out questions, %+v", c.Questions, c.BindHeldOut(1))
		}
		for _, question := range []string{"how many?", "why?"} {
			var told []trainer.Message
			answer, err := c.Ask(ctx, question, func(x trainer.Message) { told = append(told, x) })
			if err != nil {
				return err
			}
			if len(told) != 2 || told[0] != (trainer.Message{From: "planner", To: "solver", Text: question}) || told[1].From != "solver" || told[1].To != "planner" || told[1].Text != answer {
				t.Errorf("told %+v, answer %q", told, answer) // the script of the planner answers with what the solver said
			}
		}
		ended, end := context.WithCancel(ctx)
		end()
		if _, err := c.Ask(ended, "what?", func(trainer.Message) {}); !errors.Is(err, context.Canceled) {
			t.Errorf("of a question that is cut short: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestChatPassesSubTasks chats with a team whose planner and solver are hosted, so that the test
// can read their prompts. The solver must receive the planner's sub-task instead of the question.
func TestChatPassesSubTasks(t *testing.T) {
	tokens, err := filepath.Abs("../../testdata/tokenizer/smollm2")
	if err != nil {
		t.Fatal(err)
	}
	a := startAPI(t)
	cfg := hostedTeam(t, a, "planner", t.TempDir(), "run.steps=0", "cold_start.steps=0", "cold_start.demonstrations=none",
		`agents.solver.model={kind: openai, url: "`+a.url+`", name: big, key_env: MGRPO_TEST_HOSTED_KEY, retries: 0}`,
		`agents.writer={role: sub, model: {family: llama, width: 32, layers: 1, heads: 2, ffn: 64, max_positions: 512, tokenizer: `+tokens+`}}`)
	if err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: &recorder{}}); err != nil && !errors.Is(err, trainer.ErrNothingTrained) {
		t.Fatal(err)
	}
	err = trainer.Chat(t.Context(), cfg, trainer.CheckpointOptions{}, func(ctx context.Context, c *trainer.TeamChat) error {
		a.subTasks = nil
		answer, err := c.Ask(ctx, "Please count.", func(trainer.Message) {})
		if !slices.Equal(a.subTasks, []string{"count."}) || answer != "7" {
			t.Errorf("the solver was given %q, and the answer is %q", a.subTasks, answer)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestServeHosted checks that requests for the hosted agent of a served team reach its own
// server under its own name, with its key instead of the client's.
func TestServeHosted(t *testing.T) {
	cfg := withColdStart(t, startAPI(t), "solver")
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	defer server.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ask := func(model, key string) (int, string) {
		body := `{"model": "` + model + `", "logit_bias": {}, "max_tokens": 2, "messages": [{"role": "user", "content": "Reply with ok"}]}`
		r, err := http.NewRequest("POST", server.URL+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		r.Header.Set("Authorization", "Bearer "+key)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return resp.StatusCode, fmt.Sprint(string(text), err)
	}
	err := trainer.Serve(ctx, cfg, mux, trainer.ServeOptions{Token: "of the server", Ready: func(string, []trainer.ServedAgent) {
		defer stop()
		if status, text := ask("solver", "of the server"); status != 200 || !strings.Contains(text, `"content":"ok"`) {
			t.Errorf("request to the hosted agent: %d %s", status, text)
		}
		if status, text := ask("solver", "another"); status != 401 {
			t.Errorf("with a wrong key: %d %s", status, text)
		}
	}})
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
