package main

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// A run whose last step was made twice, because it was resumed, counts it once, and its accuracies are paired by question.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	put("config.yaml", "run: {name: a}\n")
	put("ledger/planner.jsonl", "{}\n")
	put("metrics.jsonl", `{"kind":"cold_start","step":0,"agent":"planner","values":{"learn_seconds":7}}
{"kind":"eval","step":0,"agent":"planner","values":{"accuracy":0.25,"calls_mean":3,"rollout_seconds":3}}
{"kind":"step","step":1,"agent":"planner","values":{"accuracy":0.5,"rollout_seconds":2,"learn_seconds":1,"sampled_tokens":10,"trained_tokens":20,"entropy_mean":0.5,"groups_degenerate":1}}
{"kind":"step","step":1,"agent":"solver","values":{"rollout_seconds":2,"learn_seconds":1,"sampled_tokens":10,"trained_tokens":20,"entropy_mean":0.25}}
{"kind":"note","step":0,"agent":"planner","values":null}
{"kind":"step","step":1,"agent":"planner","values":{"accuracy":0.75,"calls_std":1.5,"rollout_seconds":4,"learn_seconds":1,"sampled_tokens":11,"trained_tokens":21,"entropy_mean":0.5,"groups_degenerate":2}}
`)
	before := put("before.json", `{"answers":[{"question":"a","correct":[0,1]},{"question":"b","correct":[0,0]}]}`)
	after := put("after.json", `{"scores":[{"questions":2,"accuracy":0.75,"interval":[0.5,1],"calls":2},{"by":"parts","of":"3","questions":1,"accuracy":1}],
"agents":[{"agent":"planner","values":{"rollout_seconds":8}},{"agent":"solver","values":{"expert_mean":0.5,"rollout_seconds":7}}],"answers":[{"question":"b","correct":[1,0]},{"question":"a","correct":[1,1]}]}`)
	r, err := read(options{run: dir, before: before, after: after, greedyBefore: before, greedyAfter: before})
	if err != nil {
		t.Fatal(err)
	}
	if r.Curve[1].Sampled != 21 {
		t.Errorf("%d tokens are sampled up to step 1", r.Curve[1].Sampled)
	}
	if r.Before != 0.25 || r.After != 0.75 || r.Difference != 0.5 || r.Questions != 2 || r.Samples != 2 || r.Greedy.Difference != 0 {
		t.Errorf("%+v, greedy %+v", r.Comparison, r.Greedy)
	}
	if e := r.Evaluations["after"]; len(e.Scores) != 2 || e.Scores[1].Of != "3" || e.Scores[1].Accuracy != 1 || len(e.Experts) != 1 || e.Experts["solver"] != 0.5 || e.Seconds != 8 {
		t.Errorf("%+v", e)
	}
	if r.Seconds != (Seconds{7, 5, 3}) || r.Tokens["sampled"] != 21 || r.Tokens["learned"] != 41 || r.Sampled["planner"] != 11 || r.Sampled["solver"] != 10 || len(r.Ledgers) != 1 {
		t.Errorf("%+v, %v, %v, %v", r.Seconds, r.Tokens, r.Sampled, r.Ledgers)
	}
	if len(r.Curve) != 2 || *r.Curve[0].HeldOut != 0.25 || *r.Curve[0].HeldCalls != 3 || r.Curve[0].Calls != nil || *r.Curve[1].Correct != 0.75 || *r.Curve[1].Spread != 1.5 || math.Abs(r.Curve[1].Entropy["solver"]-0.25) > 0 {
		t.Errorf("%+v", r.Curve)
	}
}
