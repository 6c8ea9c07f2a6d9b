package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/openai"
	"github.com/mgrpo/mgrpo/trainer/recorded"
	"github.com/mgrpo/mgrpo/trainer/task"
)

const testKey = "sk-very-secret"

// judge starts a server that answers with the given handler, and a verifier that asks it.
func judge(t *testing.T, s JudgeSettings, handler http.HandlerFunc) Verifier {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	t.Setenv("MGRPO_TEST_JUDGE_KEY", testKey)
	s.URL, s.Model, s.KeyEnv = server.URL+"/v1", "grader", "MGRPO_TEST_JUDGE_KEY"
	v, err := New(Settings{Kind: Judge, Judge: s})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func say(w http.ResponseWriter, content string) {
	json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"message": map[string]any{"role": "assistant", "content": content}}}})
}

func TestJudgeRequest(t *testing.T) {
	prompt := DefaultJudgePrompt + " {row}"
	v := judge(t, JudgeSettings{Scale: 10, Prompt: prompt}, func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Model    string
			Messages []openai.Message
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Model != "grader" || len(body.Messages) != 1 {
			t.Errorf("body %+v: %v", body, err)
		}
		for _, part := range []string{"what?", "this", "{reference} trick", "to 10", `{"level": 3}`} {
			if !strings.Contains(body.Messages[0].Content, part) {
				t.Errorf("the prompt lacks %q:\n%s", part, body.Messages[0].Content)
			}
		}
		if strings.Count(body.Messages[0].Content, "this") != 1 {
			t.Error("a placeholder inside the answer was filled in")
		}
		if r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer "+testKey {
			t.Errorf("path %s, authorization %s", r.URL.Path, r.Header.Get("Authorization"))
		}
		say(w, "Score: 7")
	})
	got, err := v.Score(context.Background(), Case{
		Query:   task.Query{Text: "what?", Answer: "this", Columns: []byte(`{"level": 3}`)},
		Attempt: task.Attempt{Answer: "{reference} trick"},
	})
	if err != nil || got != 0.7 {
		t.Errorf("score %v, %v", got, err)
	}
}

func TestJudgeReplies(t *testing.T) {
	for reply, want := range map[string]float64{
		"Score: 5": 0.5, "5": 0.5, "Reasoning.\n**Score:** 10": 1, `{"score": 2.5}`: 0.25, "score=0": 0, "Score: 3. Then again, score: 4.": 0.4, " 10 \n": 1,
	} {
		v := judge(t, JudgeSettings{Scale: 10}, func(w http.ResponseWriter, _ *http.Request) { say(w, reply) })
		if got, err := v.Score(context.Background(), Case{}); err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", reply, got, err, want)
		}
	}
	for _, reply := range []string{"", "good", "Score: 11", "Score: -1", "Score: 7/10", "Score: 70%", "Score: 7 out of 10", "Score: 1e-2", "Score: 1E2", "Score: 0,5", "I count 5 errors", "Score: NaN"} {
		v := judge(t, JudgeSettings{Scale: 10}, func(w http.ResponseWriter, _ *http.Request) { say(w, reply) })
		if got, err := v.Score(context.Background(), Case{}); err == nil {
			t.Errorf("%q is read as %v", reply, got)
		}
	}
}

// TestJudgeAsksAgain: what the client calls transient is asked again as often as the settings say.
func TestJudgeAsksAgain(t *testing.T) {
	for retries, right := range map[int]bool{0: false, 1: true} {
		var calls atomic.Int32
		v := judge(t, JudgeSettings{Retries: retries}, func(w http.ResponseWriter, _ *http.Request) {
			if calls.Add(1) == 1 {
				http.Error(w, "not now", http.StatusServiceUnavailable)
				return
			}
			say(w, "Score: 1")
		})
		if got, err := v.Score(context.Background(), Case{}); (err == nil && got == 1) != right {
			t.Errorf("%d retries: %v, %v", retries, got, err)
		}
	}
}

func TestJudgeFailures(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"refused": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "bad key "+testKey, http.StatusUnauthorized)
		},
		"not JSON":       func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>"+testKey) },
		"no choice":      func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"choices":[]}`) },
		"echoes the key": func(w http.ResponseWriter, _ *http.Request) { say(w, "no: "+testKey) },
	} {
		var calls atomic.Int32
		v := judge(t, JudgeSettings{}, func(w http.ResponseWriter, r *http.Request) { calls.Add(1); handler(w, r) })
		got, err := v.Score(context.Background(), Case{})
		if err == nil {
			t.Errorf("%s: score %v", name, got)
			continue
		}
		if strings.Contains(err.Error(), testKey) {
			t.Errorf("%s: the key is in the error: %v", name, err)
		}
		if calls.Load() != 1 {
			t.Errorf("%s: asked %d times", name, calls.Load())
		}
	}
}

func TestJudgeHonoursContextAndTimeout(t *testing.T) {
	silent := func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // a server notices that its client left only after the body
		<-r.Context().Done()
	}
	v := judge(t, JudgeSettings{Timeout: 20 * time.Millisecond}, silent)
	if _, err := v.Score(context.Background(), Case{}); err == nil {
		t.Error("a silent judge gives a score")
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	v = judge(t, JudgeSettings{}, silent)
	if _, err := v.Score(cancelled, Case{}); err == nil {
		t.Error("a cancelled context gives a score")
	}
}

// Judges that differ in the query of their address alone have answers of their own, and the query may be a secret.
func TestJudgeService(t *testing.T) {
	one, two := judgeService("https://j.org/v1?deployment="+testKey, "m"), judgeService("https://j.org/v1?deployment=b", "m")
	if one == two || strings.Contains(one, testKey) || judgeService("https://j.org/v1", "m") != "judge https://j.org/v1 m" {
		t.Errorf("%q, %q", one, two)
	}
}

// A wrong key is no answer to keep: with the right one the judge is asked.
func TestJudgeWrongKeyIsNotKept(t *testing.T) {
	kept, err := recorded.Open(t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	var known atomic.Bool
	v := judge(t, JudgeSettings{Scale: 10, Cache: kept}, func(w http.ResponseWriter, _ *http.Request) {
		if !known.Load() {
			http.Error(w, "no such key", http.StatusUnauthorized)
			return
		}
		say(w, "Score: 5")
	})
	if _, err := v.Score(t.Context(), Case{}); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("%v", err)
	}
	known.Store(true)
	if score, err := v.Score(t.Context(), Case{}); err != nil || score != 0.5 {
		t.Errorf("with the right key: %v, %v", score, err)
	}
}

// A judge's replies and failures are replayed without the judge and without its key; what was not asked has no score.
func TestJudgeReplay(t *testing.T) {
	dir := t.TempDir()
	open := func(replay bool) *recorded.Cache {
		c, err := recorded.Open(dir, replay)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	var asked atomic.Int32
	settings := JudgeSettings{Scale: 10, Prompt: "{answer}", Cache: open(false)}
	v := judge(t, settings, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		raw, _ := io.ReadAll(r.Body)
		if strings.Contains(string(raw), "secret") {
			http.Error(w, testKey, http.StatusForbidden)
			return
		}
		say(w, fmt.Sprint("Score: ", asked.Load(), " ", testKey))
	})
	scores := func(v Verifier) (out []string) {
		for _, answer := range []string{"a", "b", "a", "secret"} {
			score, err := v.Score(t.Context(), Case{Attempt: task.Attempt{Answer: answer}})
			out = append(out, fmt.Sprint(score, err))
		}
		return out
	}
	first := scores(v)
	if !strings.HasPrefix(first[0], "0.1") || !strings.HasPrefix(first[1], "0.2") || first[2] != first[0] || !strings.Contains(first[3], "403") || asked.Load() != 3 {
		t.Errorf("%q after %d questions", first, asked.Load())
	}
	settings.URL, settings.Model, settings.KeyEnv, settings.Cache = strings.Fields(v.(*judgeVerifier).service)[1], "grader", "MGRPO_TEST_NOT_SET", open(true)
	again, err := New(Settings{Kind: Judge, Judge: settings})
	if err != nil {
		t.Fatal(err)
	}
	if got := scores(again); fmt.Sprint(got) != fmt.Sprint(first) || asked.Load() != 3 {
		t.Errorf("%q after %d questions, want %q", got, asked.Load(), first)
	}
	if _, err := again.Score(t.Context(), Case{Attempt: task.Attempt{Answer: "c"}}); !errors.Is(err, recorded.ErrMissing) {
		t.Errorf("%v", err)
	}
	err = filepath.WalkDir(dir, func(path string, f os.DirEntry, err error) error {
		if err != nil || f.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), testKey) {
			t.Errorf("%s has the key: %s", path, text)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
