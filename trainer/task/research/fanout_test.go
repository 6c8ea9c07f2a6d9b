package research

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// fanOut returns settings for questions of one to six parts, with searches that fail and planners that ask again.
func fanOut() Options {
	s := quickstart(3)
	s.Noise.AskAgain, s.Noise.StopEarly = 0.8, 0.12
	s.Shape = &Shape{Hops: 1, Parts: 6, Alias: 0.25, Outdated: 0.5, Failures: 0.3}
	return s
}

func newFanOut(t *testing.T) *Task {
	t.Helper()
	r, err := New(fanOut())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// play plays a scripted team's rollout of q with the task's own search tool, and returns the planner's answer and its
// number of calls.
func play(t *testing.T, r *Task, q task.Query, rollout int) (answer string, calls int) {
	t.Helper()
	kb := q.Data.(*KB)
	search := r.Tools(q, agentRole(Researcher))[0]
	e := &expert{kb: kb, noise: r.opt.Noise, failures: r.shape.Failures, s: task.NewStream(9, "play "+q.ID, int64(rollout))}
	answer = e.plan(func(entity, relation string) (string, bool) {
		calls++
		searches := 0
		finding := e.research(entity, relation, 3, func(words []string) []Fact {
			arguments, err := json.Marshal(map[string]string{queryArgument: strings.Join(words, " ")})
			if err != nil {
				t.Fatal(err)
			}
			ctx := tool.WithOrigin(t.Context(), tool.Origin{Query: q.ID, Rollout: rollout, Agent: string(Researcher), Invocation: calls, Call: searches})
			searches++
			text, err := search.Call(ctx, arguments)
			if err != nil {
				t.Fatal(err)
			}
			return facts(t, text)
		})
		return lastName(finding), true
	})
	return answer, calls
}

func facts(t *testing.T, sentences string) (found []Fact) {
	t.Helper()
	for words := strings.Fields(sentences); len(words) > 0; words = words[5:] {
		found = append(found, Fact{words[0], words[1], words[3], words[2] == "is"})
	}
	return found
}

// The calls of a rollout vary within a query: what alignment is for.
func TestCallsVaryWithinAQuery(t *testing.T) {
	const queries, rollouts = 50, 64
	r, again := newFanOut(t), newFanOut(t)
	var spread float64
	least, most := math.MaxInt, 0
	for i := range int64(queries) {
		q := r.Train(i)
		var sum, squares float64
		low, high := math.MaxInt, 0
		for k := range rollouts {
			answer, calls := play(t, r, q, k)
			if a, n := play(t, again, again.Train(i), k); a != answer || n != calls {
				t.Fatalf("rollout %d of %s is %q with %d calls, then %q with %d", k, q.ID, answer, calls, a, n)
			}
			low, high = min(low, calls), max(high, calls)
			sum, squares = sum+float64(calls), squares+float64(calls*calls)
		}
		if high-low > most-least || least == math.MaxInt {
			least, most = low, high
		}
		spread += math.Sqrt(squares/rollouts-sum*sum/rollouts/rollouts) / queries
	}
	t.Logf("mean standard deviation of the calls within a query: %.2f; widest query: %d to %d calls", spread, least, most)
	if spread < 1 {
		t.Errorf("calls within a query have a standard deviation of %.2f in the mean, want at least 1", spread)
	}
	if least != 1 || most != 12 {
		t.Errorf("the widest query has %d to %d calls, want 1 to 12", least, most)
	}
}

// A failure depends on the place of the call alone, and every place has its own.
func TestFailures(t *testing.T) {
	r := newFanOut(t)
	failed, n := 0, 0
	seen := map[string]bool{}
	for k := range 20 {
		for call := range 100 {
			o := tool.Origin{Query: "train-000001", Rollout: k, Agent: "researcher", Invocation: 1, Call: call}
			q := r.Train(1)
			arguments := json.RawMessage(`{"query":"` + q.Data.(*KB).Relations[0] + `"}`)
			found, err := r.Tools(q, agentRole(Researcher))[0].Call(tool.WithOrigin(t.Context(), o), arguments)
			if err != nil || (found == "") != r.fails(tool.WithOrigin(t.Context(), o)) {
				t.Fatalf("%+v: %q, %v", o, found, err)
			}
			if found == "" {
				failed++
			}
			n++
		}
		pattern := ""
		for invocation := range 40 {
			pattern += fmt.Sprint(r.fails(tool.WithOrigin(t.Context(), tool.Origin{Query: "train-000001", Rollout: k, Invocation: invocation})))
		}
		seen[pattern] = true
	}
	if share := float64(failed) / float64(n); math.Abs(share-0.3) > 0.04 {
		t.Errorf("%.3f of the searches fail, want 0.3", share)
	}
	if len(seen) != 20 {
		t.Errorf("20 rollouts have %d patterns of failures", len(seen))
	}
}

func TestFanOutQuestions(t *testing.T) {
	r, sizes := newFanOut(t), map[int]int{}
	for i := range int64(600) {
		q := r.Train(i)
		kb := q.Data.(*KB)
		sizes[len(kb.Relations)]++
		for part, relation := range kb.Relations {
			if got := kb.Truth(kb.Starts[part], relation); got != kb.Values[part] {
				t.Fatalf("part %d of %s is %q among %v, want %q", part, q.Text, got, kb.Facts, kb.Values[part])
			}
		}
		if both := slices.Concat(kb.Starts, kb.Values); len(wordSet(both)) != len(both) {
			t.Errorf("a name of %v occurs twice", both)
		}
		if words := len(strings.Fields(q.Text)); words != 2*len(kb.Relations)+1 {
			t.Errorf("%q has %d words for %d parts", q.Text, words, len(kb.Relations))
		}
		if again, err := r.Lookup(q.ID); err != nil || !reflect.DeepEqual(again, q) {
			t.Errorf("%s is rebuilt as %+v, %v", q.ID, again, err)
		}
	}
	for n := 1; n <= 6; n++ {
		if math.Abs(float64(sizes[n])-100) > 35 {
			t.Errorf("%d of 600 questions have %d parts", sizes[n], n)
		}
	}
}

func TestFanOutScore(t *testing.T) {
	kb := &KB{FanOut: true, Starts: []string{"Ada", "Bo"}, Relations: []string{"boss", "tutor"}, Values: []string{"Cara", "Dag"}}
	if kb.Question() != "Ada boss Bo tutor ?" || kb.Answer() != "Cara Dag" {
		t.Errorf("%q, %q", kb.Question(), kb.Answer())
	}
	for answer, want := range map[string]float64{"Cara Dag": 1, "Cara": 0.5, "unknown Dag": 0.5, "Dag Cara": 0, "": 0, "Cara Dag Dag Dag": 0.5} {
		if got := kb.Score(answer); got != want {
			t.Errorf("%q scores %v, want %v", answer, got, want)
		}
	}
}

// Every demonstration keeps to the grammar, and some searches in them fail and are repeated.
func TestFanOutDemonstrations(t *testing.T) {
	r := newFanOut(t)
	for _, role := range []Role{Planner, Researcher, Single} {
		failed, repeated, turns := 0, 0, 0
		for d := range r.Demonstrations(agentRole(role), 200) {
			g := newGrammar(role, true)
			for i, s := range d.Segments {
				if s.Sampled {
					turns++
					words := strings.Fields(s.Text)
					if a := g.Step(words); a.Invalid != "" || len(words) > g.MaxNew() {
						t.Fatalf("%s says %q: %v", role, s.Text, a.Invalid)
					}
				} else if s.Text == "<docs> </docs>" {
					failed++
					if strings.HasPrefix(d.Segments[i+1].Text, "<search>") {
						repeated++
					}
				}
			}
		}
		if role == Planner {
			continue
		}
		if share := float64(failed) / float64(turns); share < 0.1 || repeated < failed/2 {
			t.Errorf("%s: %d of %d turns fail, %d are repeated", role, failed, turns, repeated)
		}
	}
}

func TestFanOutGrammar(t *testing.T) {
	g := newGrammar(Planner, true)
	for range 12 {
		if got := step(t, g, "<call> Remy rival </call>"); got != "delegate Remy rival" {
			t.Fatalf("%v", got)
		}
	}
	for turn, want := range map[string]string{
		"<call> Remy rival </call>":                             "invalid",
		"<answer> Hana unknown Remy Hana Ada Bo </answer>":      "answer Hana unknown Remy Hana Ada Bo",
		"<answer> Hana unknown Remy Hana Ada Bo Zara </answer>": "invalid",
		"<answer> Hana rival </answer>":                         "invalid",
		"<answer> </answer>":                                    "invalid",
	} {
		if got := step(t, g, turn); got != want {
			t.Errorf("%q is %v, want %v", turn, got, want)
		}
	}
}
