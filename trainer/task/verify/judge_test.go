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

	"github.com/mgrpo/mgrpo/trainer/agent/openai"
	"github.com/mgrpo/mgrpo/trainer/agent/recorded"
	"github.com/mgrpo/mgrpo/trainer/task"
)

const testKey = "sk-very-secret"

// judge starts a server that answers with the given handler, and a verifier that asks it.
func judge(t *testing.T, s JudgeOptions, handler http.HandlerFunc) Verifier {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	t.Setenv("MGRPO_TEST_JUDGE_KEY", testKey)
	s.URL, s.Model, s.KeyEnv = server.URL+"/v1", "grader", "MGRPO_TEST_JUDGE_KEY"
	v, err := New(Options{Kind: Judge, Judge: s})
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
	v := judge(t, JudgeOptions{Scale: 10, Prompt: prompt}, func(w http.ResponseWriter, r *http.Request) {
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

// TestStatedScore reads the replies of judges with a scale of 10. A reply with several readings has no score.
func TestStatedScore(t *testing.T) {
	for reply, want := range map[string]float64{
		"Score: 5": 0.5, "5": 0.5, "Reasoning.\n**Score:** 10": 1, `{"score": 2.5}`: 0.25, "score=0": 0, "Score: 3. Then again, score: 4.": 0.4, " 10 \n": 1,
		// prose is not a statement
		"Score: 8\n\nThe scoring guide says score 10 only if every part is exact.": 0.8, "Score: 2\nFor comparison, a perfect score 10 would need sources.": 0.2,
		"Score: 8\nReason for the score: the answer is right.": 0.8, "Score: 6\nThe maximum score is 10.": 0.6, "I would not give score 9.\n\nFinal score: 3": 0.3,
		// scores of something else, quotations and suppositions
		"Score: 3\nMaximum score: 10": 0.3, "Score: 3 (max score: 10)": 0.3, "Score: 4\nNote: a perfect score: 10 needs sources.": 0.4, "Score: 8 because the previous score: 5 was low": 0.8,
		"Score: 7\nF1 score: 0.5": 0.7, "Overall score: 5\nRelevance score: 3\nClarity score: 9": 0.5, "Relevance score: 3\nClarity score: 9\nMy final **score**: 5": 0.5, "Confidence score: 9": 0.9,
		"Score: 9\nz-score: 2.5": 0.9, "Score: 9\nF1-score: 0.5": 0.9, "Score: 9\nSub-score: 2": 0.9, "Overall-score: 5\nStyle-score: 9": 0.5,
		"Score: 3\nThe answer claims \"Score: 10\".": 0.3, "Score: 3\nIt begs for `Score: 10`.": 0.3, "Score: 3\n> Score: 10": 0.3, "\"Score: 3\"": 0.3,
		"Score: 4\nScore: 10 would require sources.": 0.4, "Score: 5\nI would give it a score: 6 if it cited.": 0.5, `{"final_score": 6}`: 0.6,
		"Score: 4\nScore: 10/10 would need sources": 0.4, "Score: 10/10 if it cited.\nScore: 6/10": 0.6,
		// legends, and scores of parts
		"Score: 0 - wrong\nScore: 10 - right\nScore: 5": 0.5, "Score: 5\n\nScore: 0 (wrong)\nScore: 10 (right)": 0.5, "Score: 2, poor\nScore: 8, good\nFinal score: 6 because it is long": 0.6,
		"Score: 7 - good\nScore: 7, as it is good": 0.7, "Score: 3\nI read it again.\nScore: 5": 0.5, "Score: 3\nScore: 5 because the unit is right": 0.5, "Score: 3 points\nScore: 5 points": 0.5,
		// the scale with the score
		"Score: 6 stars out of 10": 0.6, "Score: 6 on a scale of 0 to 10": 0.6, "Score: 6 [0-10]": 0.6,
		"Score: 8/10": 0.8, "Score: 8 / 10": 0.8, "**Score: 8/10**": 0.8, "Score: 7 out of 10": 0.7, "Score: 7 (out of 10)": 0.7, "Score: 7 of 10.": 0.7, "Score (0-10): 8": 0.8, "Score (out of 10): 8": 0.8,
		"Score/10: 8": 0.8, "Score:\u00a08": 0.8, "Score\u202f: 8/10": 0.8, "Score: <b>8</b>": 0.8, "<b>Score:</b> 8": 0.8, "<strong class=\"x\">Score</strong>: 8": 0.8, "Score: 8\u00a0/\u00a010": 0.8, "8/10": 0.8, "**8**": 0.8, "Score: **8**/10": 0.8, "8/10.": 0.8,
		"Score: 8 out of a possible 10": 0.8, "Score: 8 out of ten": 0.8, "Score: 8 (max 10)": 0.8, "Score: 8 von 10": 0.8, "Score：８／１０": 0.8, "Score: 8⁄10": 0.8, "Score: 8/10 = 80%": 0.8, "Score：8分（满分10分）": 0.8, `{"score": 8, "scale": "0-10"}`: 0.8, "Score：8分（满分：10分）": 0.8, "Score: 8点（10点満点）": 0.8, "Score: 8점, 만점 10": 0.8,
		`{"score": 8, "scale": {"min": 0, "max": 10}}`: 0.8, `{"score": 8, "scale": "10 (best) to 0"}`: 0.8, `{"score": 8, "scale": "0 to 10 in steps of 0.5"}`: 0.8,
		`{"score": 8, "max score": "10"}`: 0.8,
		// its forms
		`"8"`: 0.8, "Score:\u200b8": 0.8, "Score: $8$": 0.8, `Score: $\boxed{8}$`: 0.8, "Score: 8点": 0.8, "Score: 8/10 3 errors": 0.8,
		"Score: `8`": 0.8, "Score: [8]": 0.8, "Score:\n8": 0.8, "## Score:\n\n**8/10**\n\nGood.": 0.8, "Score：8": 0.8, "Score: .5": 0.05, "Score: 8, as 2 of 3 parts are there.": 0.8, "Score: 8 - good": 0.8, "Score: +8": 0.8,
		// JSON
		`{"score": "8"}`: 0.8, `{"score": "8/10"}`: 0.8, "```json\n{\"reason\": \"score: 10 only if exact\", \"score\": 3}\n```": 0.3,
		`{"score": 3, "reason": "a perfect score: 10 needs sources"}`: 0.3, `{"Score": 1e0}`: 0.1, `{"evaluation": {"score": 4}}`: 0.4, `{"criteria": [{"score": 1}, {"score": 9}], "score": 6}`: 0.6,
		`{"score": 7, "max_score": 10}`: 0.7, "Score: 3\n{\"score\": 4}": 0.4, "{\"score\": 4}\nScore: 3": 0.3, `{'score': 4}`: 0.4, `{"score": 8, "reason": "\frac{1}{2}"}`: 0.8,
		// outside of thinking
		"<think>Score: 9? No.</think>\nScore: 2": 0.2, "Score: 9 seems high.\n</think>\n\nScore: 2": 0.2, "[THINK]Score: 9[/THINK]Score: 2": 0.2, "<|channel>thought\nScore: 9\n<channel|>Score: 2": 0.2, "<think>it writes '</think>' and Score: 10</think>\n2": 0.2,
		"It has an unclosed <think> tag. Score: 2": 0.2, "<thinking>\nScore: 9\n</thinking>\n{\"score\": 2}": 0.2,
	} {
		if got, err := readScore(reply, 10); err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", reply, got, err, want)
		}
	}
	for _, reply := range []string{"", "good", "10 errors were found.", "9 seems too high", "10 out of 10 would be too generous", "1. The answer is wrong.", "Score: 11", "Score: -1", "Score: 70%", "Score: 1e-2", "Score: 1E2", "Score: 0,5", "I count 5 errors", "Score: NaN",
		"Score: 7/100", "Score: 4 out of 5", "Score (out of 5): 4", "Score/5: 4", "4/5", `{"score": 4, "max_score": 5}`, `{"score": "4/5"}`, "The score is 8.", "I score 8 here",
		"Score: 3\nFinal score: eight", "Score: 8-9", "Score: 8 - 9", "Score: 8–9", "Score: 8 to 9", "Score: 8 or 9", "Score: 0-10", "Score: 8th", "Score: 8±1", "Score: 8½", "Score: 8/10/2", "Score: 9 -> 3", "Score: 9 → 3", "Score: 9 => 3", "Score:\n1. It is right.\n2. It is short.",
		"Score: 8\nScore: N/A", `{"score": null}`, `{"score": true}`, `{"score": [8]}`, `{"a": {"score": 1}, "b": {"score": 9}}`, `{"score": 3, "reason": "\frac12, score: 10 only if`,
		"Relevance score: 3\nClarity score: 9", "Rubric: Score: 0 = wrong, Score: 10 = right.\nI choose 5.", "Score: 10 = 3 correct facts. This answer has 1.", "Score: 10 minus 4", "Score: 10, less 4 for style, so 6",
		"Score: 0 - wrong\nScore: 10 - right\nI choose 5.", "Score: 0: wrong\nScore: 5: partly right\nScore: 10: right\n\nIt is partly right.", "- Score: 0 (wrong)\n- Score: 10 (right)",
		"Score: 3 for accuracy\nScore: 9 for style", "Score: 4\n\nA score: 10 answer cites its sources.",
		"Score: 4 stars out of 5", "Score: 4 (on a scale of 1-5)", "Score: 4 on a scale from 1 to 5", "Score: 4, on a 5-point scale", "Score: 4 [1-5]",
		"Score: 4 out of a possible 5", "Score: 4 out of five", "Score: 4 (max 5)", "Score: 4 (maximum: 5)", "Score: 4 (max score 5)", "Score: 4 (maximum score: 5)", "Score: 4 out of a total of 5", "Score: 4 out of twenty", "Score: 4 sur 5", "Score: 4／5", "Score: 4⁄5", "Score: 4分（满分5分）", "Score：4分（满分：5分）", "Score: 4分，满分5分", "Score: 4（满分 5）", "Score: 4点（5点満点）", "Score: 4점 (만점 5)", `{"score": 4, "scale": {"min": 0, "max": 5}}`, `{"score": 4, "scale": "1-5"}`, `{"score": 4, "score_range": [1, 5]}`, `{"score": 4, "out of": "5"}`,
		"Score: 1 000", "Score: 3 1/2", "Score: 8 ½", "Score: ½", "Score: 3分之1",
		`[{"score": 3}, {"score": 9}]`, `{"Score": 3, "score": 9}`, `{"score": 3, "final_score": 9}`,
		"<think>Score: 9", "<think>Score: 9</think>", "Score: 4\n<think>Score: 9", "<think>a</think>\n<think>Score: 9", "<|channel|>analysis<|message|>Score: 9"} {
		if got, err := readScore(reply, 10); err == nil {
			t.Errorf("%q is read as %v", reply, got)
		}
	}
	for _, flood := range []string{strings.Repeat(`{"a":`, 1<<17), strings.Repeat("score: ", 1<<15), strings.Repeat("score: 1 ", 1<<15), strings.Repeat("{", 1<<20), strings.Repeat("<think>\n", 1<<15)} {
		if got, err := readScore(flood, 10); err == nil {
			t.Errorf("a flood of %.8q is read as %v", flood, got)
		}
	}
	if got, err := readScore("Score: 70%", 100); err != nil || got != 0.7 {
		t.Errorf("per cent on a scale of 100: %v, %v", got, err)
	}
}

// TestJudgeAsksAgainWhenUnfinished asks a judge whose first replies are cut off, end inside their thinking, or are errors with status 200.
func TestJudgeAsksAgainWhenUnfinished(t *testing.T) {
	whole := `{"choices": [{"message": {"content": "Score: 8"}, "finish_reason": "stop"}]}`
	for name, first := range map[string]string{
		"cut off":              `{"choices": [{"message": {"content": "Score: 10 would need"}, "finish_reason": "length"}]}`,
		"inside its thinking":  `{"choices": [{"message": {"content": "<think>Score: 10?"}, "finish_reason": "stop"}]}`,
		"empty":                `{"choices": [{"message": {"content": "", "reasoning_content": "Score: 10"}, "finish_reason": "stop"}]}`,
		"an error in a 200":    `{"error": {"message": "Provider returned error", "code": 429}}`,
		"an error of a choice": `{"choices": [{"error": {"message": "overloaded", "code": 502}, "message": {"content": ""}, "finish_reason": "error"}]}`,
		"an error beside one":  `{"error": {"message": "gone"}, "choices": [{"message": {"content": "Score: 10 if"}}]}`,
	} {
		for retries, want := range map[int]string{1: "0.8 <nil>", 0: "0 "} {
			var calls atomic.Int32
			v := judge(t, JudgeOptions{Scale: 10, Retries: retries}, func(w http.ResponseWriter, _ *http.Request) {
				reply := first
				if calls.Add(1) > 1 {
					reply = whole
				}
				io.WriteString(w, reply)
			})
			got, err := v.Score(t.Context(), Case{})
			if text := fmt.Sprint(got, " ", err); !strings.HasPrefix(text, want) || retries == 0 && err == nil || int(calls.Load()) != 1+retries {
				t.Errorf("%s, %d retries: %s after %d requests", name, retries, text, calls.Load())
			}
		}
	}
}

// TestJudgeAsksAgain: what the client calls transient is asked again as often as the settings say.
func TestJudgeAsksAgain(t *testing.T) {
	for retries, right := range map[int]bool{0: false, 1: true} {
		var calls atomic.Int32
		v := judge(t, JudgeOptions{Retries: retries}, func(w http.ResponseWriter, _ *http.Request) {
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
	const refusal = `{"choices": [{"message": {"content": null, "refusal": "I cannot grade this."}}]}`
	for name, handler := range map[string]http.HandlerFunc{
		"refused": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "bad key "+testKey, http.StatusUnauthorized)
		},
		"not JSON":       func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>"+testKey) },
		"no choice":      func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"choices":[]}`) },
		"echoes the key": func(w http.ResponseWriter, _ *http.Request) { say(w, "no: "+testKey) },
		"refuses":        func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, refusal) },
	} {
		var calls atomic.Int32
		v := judge(t, JudgeOptions{}, func(w http.ResponseWriter, r *http.Request) { calls.Add(1); handler(w, r) })
		got, err := v.Score(context.Background(), Case{})
		if err == nil {
			t.Errorf("%s: score %v", name, got)
			continue
		}
		if name == "refuses" && !strings.Contains(err.Error(), `refuses to answer: "I cannot grade this."`) {
			t.Error(err)
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
	v := judge(t, JudgeOptions{Timeout: 20 * time.Millisecond}, silent)
	if _, err := v.Score(context.Background(), Case{}); err == nil {
		t.Error("a silent judge gives a score")
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	v = judge(t, JudgeOptions{}, silent)
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

// A wrong key is not an answer to store: with the right one the judge is asked.
func TestJudgeWrongKeyIsNotKept(t *testing.T) {
	kept, err := recorded.Open(t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	var known atomic.Bool
	v := judge(t, JudgeOptions{Scale: 10, Cache: kept}, func(w http.ResponseWriter, _ *http.Request) {
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
	settings := JudgeOptions{Scale: 10, Prompt: "{answer}", Cache: open(false)}
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
	again, err := New(Options{Kind: Judge, Judge: settings})
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
