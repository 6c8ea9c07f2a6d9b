package research

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/tasktest"
)

// quickstart returns the quickstart's settings: 192 held-out queries and the sloppy experts.
func quickstart(seed uint64) Options {
	return Options{Seed: seed, EvalSize: 192, Noise: sloppyNoise()}
}

// sloppyNoise returns the noise that the quickstart's cold start learns from. The choices that reinforcement learning
// must change are wrong in the majority, so that greedy decoding does not already avoid them.
func sloppyNoise() Noise {
	return Noise{OneWord: 0.06, Outdated: 0.55, RandomQuote: 0.03, GiveUp: 0.55, WrongRelation: 0.05, StopEarly: 0.08, AskAgain: 0.6}
}

func newTask(t *testing.T, seed uint64) *Task {
	t.Helper()
	r, err := New(quickstart(seed))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestVocabulary(t *testing.T) {
	v := vocabulary
	if len(v) != 113 || v[0] != "<pad>" || v[1] != "?" || v[20] != "</note>" || v[21] != "boss" || v[28] != "neighbour" || v[29] != "Ada" || v[112] != "Zeno" {
		t.Errorf("%d words, %v", len(v), v)
	}
	if len(wordSet(v)) != len(v) {
		t.Error("a word occurs twice")
	}
	if len(relations) != 8 || len(names) != 84 {
		t.Errorf("%d relations, %d names", len(relations), len(names))
	}
}

func TestQueriesAreFunctionsOfTheSeed(t *testing.T) {
	a, b, other := newTask(t, 5), newTask(t, 5), newTask(t, 6)
	tasktest.Check(t, a, task.AgentRole{Agent: "planner", Main: true, Delegates: []string{"researcher"}}, task.AgentRole{Agent: "researcher"})
	same := 0
	for i := range 50 {
		q := a.Train(int64(i))
		if !reflect.DeepEqual(q, b.Train(int64(i))) {
			t.Errorf("%s differs between two tasks of one seed", q.ID)
		}
		again, err := b.Lookup(q.ID)
		if err != nil || !reflect.DeepEqual(again, q) {
			t.Errorf("%s is rebuilt as %+v, %v", q.ID, again, err)
		}
		for _, different := range []task.Query{other.Train(int64(i)), a.Eval(i), a.Train(int64(i) + 1000)} {
			if different.Text == q.Text {
				same++
			}
		}
	}
	if same > 0 {
		t.Errorf("%d of 150 queries have the text of another", same)
	}
	for _, id := range []string{"", "train", "train-", "train-1", "train--00001", "train-0000017", "eval-000192", "test-000001", "train-000001#epoch=2", "demo-99999999999999999999"} {
		if q, err := a.Lookup(id); err == nil {
			t.Errorf("id %q gives %+v", id, q)
		}
	}
}

// The chain can be followed through the knowledge base, an alias or an outdated twin notwithstanding.
func TestKnowledgeBases(t *testing.T) {
	const n = 3000
	hops, aliases, twins, facts := [4]int{}, 0, 0, 0
	for i := range n {
		kb := makeKB(defaultShape(), task.NewStream(11, "kb", int64(i)))
		hops[len(kb.Relations)]++
		facts += len(kb.Facts)
		for hop, r := range kb.Relations {
			if got := kb.Truth(kb.Starts[hop], r); got != kb.Values[hop] {
				t.Fatalf("hop %d of %v by %v is %q among %v", hop, kb.Starts, kb.Relations, got, kb.Facts)
			}
			if kb.subject(hop) != kb.Starts[hop] {
				aliases++
			}
			if _, ok := kb.value(kb.subject(hop), r, false); ok {
				twins++
			}
		}
		seen := map[Fact]bool{}
		for _, f := range kb.Facts {
			f.Value = ""
			if seen[f] {
				t.Fatalf("two facts on %v in %v", f, kb.Facts)
			}
			seen[f] = true
		}
	}
	total := float64(hops[1] + 2*hops[2] + 3*hops[3])
	for what, share := range map[string][2]float64{
		"one hop": {float64(hops[1]) / n, 1. / 3}, "three hops": {float64(hops[3]) / n, 1. / 3},
		"aliases": {float64(aliases) / total, 0.25}, "outdated twins": {float64(twins) / total, 0.5}, "facts": {float64(facts) / n / 11, 1},
	} {
		if math.Abs(share[0]-share[1]) > 0.04 {
			t.Errorf("%s: %.3f, want %.3f", what, share[0], share[1])
		}
	}
}

func TestSearchRanks(t *testing.T) {
	kb := &KB{Facts: []Fact{
		{"Ada", "boss", "Bo", false}, {"Zeno", "boss", "Yara", true}, {"Ada", "boss", "Cara", true},
		{"Vera", "rival", "Ada", true}, {"Ada", "alias", "Uma", true}, {"Wim", "tutor", "Xena", true},
	}}
	for query, want := range map[string]string{
		"Ada boss":  "Ada boss was Bo . Ada boss is Cara . Ada alias is Uma .", // ties in the order of facts
		"boss Ada":  "Ada boss was Bo . Ada boss is Cara . Ada alias is Uma .",
		"Ada":       "Ada boss was Bo . Ada boss is Cara . Ada alias is Uma .",
		"boss boss": "Ada boss was Bo . Zeno boss is Yara . Ada boss is Cara .",
		"Xena":      "Wim tutor is Xena .",
		"Gil":       "",
		"is":        "",
		"rival Ada": "Vera rival is Ada . Ada boss was Bo . Ada boss is Cara .",
	} {
		if got := sentences(kb.Search(strings.Fields(query))); got != want {
			t.Errorf("search %q: %q, want %q", query, got, want)
		}
	}
}

func TestVerify(t *testing.T) {
	r, ctx := newTask(t, 1), t.Context()
	q := r.Train(0)
	kb := q.Data.(*KB)
	for answer, want := range map[string]float64{q.Answer: 1, " " + q.Answer + " ": 1, kb.Starts[0]: 0, Unknown: 0, "": 0, q.Answer + " " + q.Answer: 0} {
		if got, err := r.VerifyMain(ctx, q, task.Attempt{Answer: answer}); err != nil || got != want {
			t.Errorf("answer %q scores %v, %v", answer, got, err)
		}
	}
	sub := kb.Starts[0] + " " + kb.Relations[0]
	unanswerable := kb.Starts[0] + " " + relations[slices.IndexFunc(relations, func(r string) bool { return kb.Truth(kb.Starts[0], r) == Unknown })]
	for _, c := range []struct {
		subtask, answer string
		want            float64
	}{
		{sub, sub + " is " + kb.Values[0], 1}, {sub, kb.Values[0], 1}, {sub + " ?", kb.Values[0], 1}, {sub, Unknown, 0}, {sub, kb.Starts[0], 0}, {sub, "", 0},
		{unanswerable, Unknown, 1}, {unanswerable, kb.Values[0], 0}, {unanswerable, "", 0},
	} {
		if got, err := r.VerifySub(ctx, q, task.Attempt{Subtask: c.subtask, Answer: c.answer}); err != nil || got != c.want {
			t.Errorf("%q answered %q scores %v, %v; want %v", c.subtask, c.answer, got, err, c.want)
		}
	}
	if _, err := r.VerifySub(ctx, q, task.Attempt{Subtask: "who?", Answer: "Ada"}); err == nil {
		t.Error("a sub-task that is not a question is scored")
	}
	if _, err := r.VerifySub(ctx, task.Query{ID: "x"}, task.Attempt{Subtask: sub, Answer: "Ada"}); err == nil {
		t.Error("a query without its knowledge base is scored")
	}
}

func TestSettingsAreChecked(t *testing.T) {
	for name, spoil := range map[string]func(*Options){
		"eval_size": func(s *Options) { s.EvalSize = 0 },
		"give_up":   func(s *Options) { s.Noise.GiveUp = 1.1 },
		"hops":      func(s *Options) { s.Shape = &Shape{Hops: 4} },
		"alias":     func(s *Options) { s.Shape = &Shape{Hops: 1, Alias: math.NaN()} },
		"parts":     func(s *Options) { s.Shape = &Shape{Hops: 1, Parts: 7} },
		"failures":  func(s *Options) { s.Shape = &Shape{Hops: 1, Failures: -0.1} },
	} {
		s := quickstart(0)
		spoil(&s)
		if _, err := New(s); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
