package advantages

import (
	"bufio"
	"io"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/mgrpo/oracle"
)

func TestJSONL(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"a group", `{"groups":[{"rewards":[1,0]}]}`, `{"groups":[{"advantage":[1,-1],"mean":0.5,"std_population":0.5,"degenerate":false}]}`},
		{"weights", `{"groups":[{"rewards":[1,0,9],"weights":[1,1,0]}]}`, `{"groups":[{"advantage":[1,-1,0],"mean":0.5,"std_population":0.5,"degenerate":false}]}`},
		{"degenerate", `{"groups":[{"rewards":[0.5]}]}`, `{"groups":[{"advantage":[0],"mean":0.5,"std_population":0,"degenerate":true}]}`},
		{"rounding", `{"groups":[{"rewards":[0.3,0.30000000000000004]}],"convention":{"std":"sample","eps":0,"baseline":"mean","sigma_min":0}}`, `{"groups":[{"advantage":[0,0],"mean":0.3,"std_population":0,"degenerate":true}]}`},
		{"empty", `{"groups":[{"rewards":[],"weights":[]}]}`, `{"groups":[{"advantage":[],"degenerate":false,"empty":true}]}`},
		{"no groups", `{"groups":[]}`, `{"groups":[]}`},
		{"convention by name", `{"groups":[{"rewards":[1,0]}],"convention":"dr_grpo"}`, `{"groups":[{"advantage":[0.5,-0.5],"mean":0.5,"std_population":0.5,"degenerate":false}]}`},
		{"convention in full", `{"groups":[{"rewards":[1,0]}],"convention":{"std":"none","eps":0,"baseline":"leave_one_out","sigma_min":0}}`, `{"groups":[{"advantage":[1,-1],"mean":0.5,"std_population":0.5,"degenerate":false}]}`},
		{"NaN", `{"groups":[{"rewards":[1,"NaN"]}]}`, `{"error":{"code":"non_finite_reward","index":1}}`},
		{"second group", `{"groups":[{"rewards":[1]},{"rewards":["-Infinity"]}]}`, `{"error":{"code":"non_finite_reward","group":1,"index":0}}`},
		{"bad weight", `{"groups":[{"rewards":[1,2],"weights":[1,-1]}]}`, `{"error":{"code":"bad_weight","index":1}}`},
		{"a list", `{"groups":[[1,0]]}`, `{"error":{"code":"malformed_input","field":"groups","message":"is of JSON's type array: a line is {\"groups\": [{\"rewards\": [1, 0]}]} or an alignment"}}`},
		{"a fraction", `{"run_seed":1,"query":"","rollout":1.5,"agent":"a","d":8,"d_k":3}`, `{"error":{"code":"malformed_input","field":"rollout","message":"1.5 is not an integer within the bounds of this key: a line is {\"groups\": [{\"rewards\": [1, 0]}]} or an alignment"}}`},
		{"no rewards", `{"groups":[{"rewards":[1,0]},{"rewards":null}]}`, `{"error":{"code":"missing_reward","group":1,"message":"the group has no list of rewards"}}`},
		{"alignment", `{"run_seed":"42","query":"q-0001","rollout":0,"agent":"searcher","d":8,"d_k":3}`, `{"multiplicity":[5,1,2],"draws":[0,0,0,0,2]}`},
		{"alignment, seed as a number", `{"run_seed":42,"query":"q-0001","rollout":0,"agent":"searcher","d":8,"d_k":11}`, `{"multiplicity":[0,0,0,1,1,1,1,1,1,1,1],"draws":[2,1,0]}`},
		{"no calls", `{"run_seed":1,"query":"","rollout":0,"agent":"a","d":8,"d_k":0}`, `{"multiplicity":[],"draws":[]}`},
	} {
		var out strings.Builder
		if err := answerLines(strings.NewReader(c.in), &out, oracle.Normalise); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := strings.TrimSpace(out.String()); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

// TestJSONLAnswersAtOnce: a program may wait for an answer before it writes the next line.
func TestJSONLAnswersAtOnce(t *testing.T) {
	in, question := io.Pipe()
	answer, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- answerLines(in, out, oracle.Normalise) }()
	replies := bufio.NewScanner(answer)
	for range 3 {
		if _, err := io.WriteString(question, `{"groups":[{"rewards":[1,0]}]}`+"\n"); err != nil || !replies.Scan() || !strings.Contains(replies.Text(), "[1,-1]") {
			t.Fatalf("%q, %v", replies.Text(), err)
		}
	}
	question.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestJSONLRefusesAndGoesOn(t *testing.T) {
	bad := []string{
		`{"groups":[]}]`, `{"groups":[]}}`, `{"groups":[]} {}`, `{"groups":[],"d":8}`, `{"run_seed":1,"query":"","rollout":0,"agent":"a","d":8,"d_k":0,"convention":"mgrpo"}`,
		`{`, `[]`, `{"groups":1}`, `{"groups":[{"reward":[1]}]}`, `{"groups":[{"rewards":["one"]}]}`,
		`{"groups":[{"rewards":[1,2],"weights":[1]}]}`, `{"groups":[{"rewards":[1,2],"weights":[1]},{"rewards":[1],"weights":[1,2]}]}`,
		`{"groups":[{"rewards":[1]}],"convention":"ppo"}`,
		`{"groups":[{"rewards":[1]}],"convention":{"std":"none"}}`, `{"groups":[]} {"groups":[]}`, `{"query":"q"}`,
		`{"run_seed":-1,"query":"q","rollout":0,"agent":"a","d":8,"d_k":0}`,
		`{"run_seed":1,"query":"q","rollout":0,"agent":"a","d":0,"d_k":1}`,
		`{"run_seed":1,"query":"q","rollout":0,"agent":"a","d":8,"d_k":99999999}`,
	}
	in := strings.Join(bad, "\n\n") + "\n" + `{"groups":[]}`
	answers := map[string]string{}
	for name, normalise := range map[string]mgrpo.Normaliser{"oracle": oracle.Normalise, "kernel": kernels.NormaliserOn(kernels.CPU)} {
		var out strings.Builder
		if err := answerLines(strings.NewReader(in), &out, normalise); err != nil {
			t.Fatal(err)
		}
		answers[name] = out.String()
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != len(bad)+1 {
			t.Fatalf("%s: %d answers to %d lines", name, len(lines), len(bad)+1)
		}
		for i, line := range lines[:len(bad)] {
			if !strings.HasPrefix(line, `{"error":{"code":"`) {
				t.Errorf("%s: %s is answered %s", name, bad[i], line)
			}
		}
	}
	if answers["kernel"] != answers["oracle"] {
		t.Errorf("the kernel answers\n%s\nthe oracle\n%s", answers["kernel"], answers["oracle"])
	}
}

func FuzzJSONL(f *testing.F) {
	for _, seed := range []string{`{"groups":[{"rewards":[1,"NaN"],"weights":[1]}]}`, `{"run_seed":"1","query":"q","rollout":0,"agent":"a","d":3,"d_k":5}`, `{"groups":null,"convention":{}}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		var out strings.Builder
		if err := answerLines(strings.NewReader(line), &out, oracle.Normalise); err != nil {
			t.Fatal(err)
		}
	})
}
