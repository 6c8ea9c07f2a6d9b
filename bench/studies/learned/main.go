// Command learned writes a run's results into a file: held-out accuracy before and after, sampled and greedy, with the difference
// paired by question. The file also has the curve between, the costs, and the digests of the ledgers. README.md describes its use.
package main

import (
	"cmp"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/trainer/cgroup"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/run/score"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

type options struct {
	run, commit, out                         string
	before, after, greedyBefore, greedyAfter string // files with the output of mgrpo eval --json
}

// Result is the content of the file.
type Result struct {
	Run     string          `json:"run"`
	Machine measure.Machine `json:"machine"`
	Config  string          `json:"config"` // of the run, including all defaults

	measure.Accuracies
	Evaluations map[string]Evaluation `json:"evaluations"` // by the name of the option

	Seconds Seconds          `json:"seconds"`
	Tokens  map[string]int64 `json:"tokens"`          // sampled and trained on, by all agents, without evaluations and cold start
	Sampled map[string]int64 `json:"tokens_by_agent"` // sampled tokens
	Curve   []Point          `json:"curve"`
	Ledgers []File           `json:"ledgers"`
	Weights []File           `json:"weights"` // of the last checkpoint; the same run on a machine of the same kind gives equal digests
}

// File is a file of the run: its path, its size in bytes and its SHA-256 in hexadecimal.
type File struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Evaluation is one of the compared evaluations.
type Evaluation struct {
	Scores  []Score            `json:"scores"`
	Experts map[string]float64 `json:"experts,omitempty"` // by sub-agent, mean score of its answers
	Seconds float64            `json:"seconds"`
}

// Score holds the scores of the answers to questions of a kind, a level or a number of parts, or to all questions if By is "".
type Score struct {
	By        string     `json:"by,omitempty"`
	Of        string     `json:"of,omitempty"`
	Questions int        `json:"questions"`
	Accuracy  float64    `json:"accuracy"`
	Interval  [2]float64 `json:"interval"` // 95 %
	Calls     float64    `json:"calls"`    // of sub-agents in one answer
}

// Seconds holds elapsed times of the main agent's worker. Other programs on the machine lengthen them.
type Seconds struct {
	ColdStart   float64 `json:"cold_start"`
	Steps       float64 `json:"steps"`
	Evaluations float64 `json:"evaluations"`
}

// Point is a step, or an evaluation of the weights after a step.
type Point struct {
	Step       int64              `json:"step"`
	HeldOut    *float64           `json:"held_out,omitempty"`
	HeldCalls  *float64           `json:"held_out_calls,omitempty"` // of sub-agents, mean of the evaluation's rollouts
	Correct    *float64           `json:"correct,omitempty"`        // mean of the step's rollouts
	Calls      *float64           `json:"calls,omitempty"`
	Spread     *float64           `json:"calls_std,omitempty"`      // standard deviation of the calls within a question
	Sampled    int64              `json:"sampled_tokens,omitempty"` // by all agents, up to this point
	Entropy    map[string]float64 `json:"entropy,omitempty"`        // by agent, nats a token
	Degenerate map[string]float64 `json:"degenerate_groups,omitempty"`
}

func main() {
	var o options
	flag.StringVar(&o.run, "run", "", "folder of the run")
	flag.StringVar(&o.commit, "commit", "", "commit of the run's program; several, separated by commas, if several builds made parts of the run")
	flag.StringVar(&o.before, "before", "", "evaluation of the first checkpoint")
	flag.StringVar(&o.after, "after", "", "evaluation of the last checkpoint")
	flag.StringVar(&o.greedyBefore, "greedy-before", "", "evaluation of the first checkpoint at temperature 0")
	flag.StringVar(&o.greedyAfter, "greedy-after", "", "evaluation of the last checkpoint at temperature 0")
	flag.StringVar(&o.out, "out", "", "file to write")
	flag.Parse()
	if err := write(o); err != nil {
		fmt.Fprintln(os.Stderr, "learned:", err)
		os.Exit(1)
	}
}

func write(o options) error {
	r, err := read(o)
	if err != nil {
		return err
	}
	cfg, err := config.Load(filepath.Join(o.run, "config.yaml"), nil)
	if err != nil {
		return err
	}
	threads := cmp.Or(cfg.Run.Threads, cgroup.UsableCores().N)
	if r.Machine, err = measure.Examine(o.commit, "cpu", threads); err != nil {
		return err
	}
	if r.Weights, err = weights(archive.CheckpointsDir(o.run)); err != nil {
		return err
	}
	fmt.Printf("%.3f -> %.3f, difference %+.3f [%+.3f, %+.3f]; greedy %.3f -> %.3f, %+.3f [%+.3f, %+.3f]\n", r.Before, r.After, r.Difference, r.Interval[0],
		r.Interval[1], r.Greedy.Before, r.Greedy.After, r.Greedy.Difference, r.Greedy.Interval[0], r.Greedy.Interval[1])
	return measure.WriteFile(o.out, r)
}

// read collects everything except the machine.
func read(o options) (r Result, err error) {
	r.Run = filepath.Base(o.run)
	config, err := os.ReadFile(filepath.Join(o.run, "config.yaml"))
	if err != nil {
		return r, err
	}
	r.Config = string(config)
	r.Evaluations = map[string]Evaluation{}
	if r.Comparison, err = r.compare("", o.before, o.after); err != nil {
		return r, err
	}
	if r.Greedy, err = r.compare("greedy_", o.greedyBefore, o.greedyAfter); err != nil {
		return r, err
	}
	if err := r.readRecords(o.run); err != nil {
		return r, err
	}
	ledgers, err := filepath.Glob(filepath.Join(o.run, "ledger", "*.jsonl"))
	if err != nil {
		return r, err
	}
	for _, path := range ledgers {
		f, err := digest(path)
		if err != nil {
			return r, err
		}
		r.Ledgers = append(r.Ledgers, f)
	}
	return r, nil
}

// digest reads a file and returns its size and SHA-256, and its name as the path.
func digest(path string) (File, error) {
	data, err := os.ReadFile(path)
	return File{filepath.Base(path), int64(len(data)), fmt.Sprintf("%x", sha256.Sum256(data))}, err
}

// weights returns the files of the newest checkpoint's sampling weights.
func weights(checkpoints string) (files []File, err error) {
	all := archive.Checkpoints{Dir: checkpoints}
	steps, err := all.List()
	if err == nil && len(steps) == 0 {
		err = archive.ErrNoCheckpoint
	}
	if err != nil {
		return nil, err
	}
	newest, err := all.Verify(steps[len(steps)-1])
	if err != nil {
		return nil, err
	}
	for _, a := range newest.Agents {
		for _, f := range a.Files {
			if strings.HasSuffix(f.Path, ".safetensors") {
				f.Path = a.Name + "/" + f.Path
				files = append(files, File(f))
			}
		}
	}
	return files, nil
}

// compare reads two evaluations, adds them under names with a prefix, and compares them.
func (r *Result) compare(prefix, before, after string) (c measure.Comparison, err error) {
	first, err := measure.ReadPart[score.File](before)
	if err != nil {
		return c, err
	}
	last, err := measure.ReadPart[score.File](after)
	if err != nil {
		return c, err
	}
	d, err := score.Compare(first.Answers, last.Answers, 1)
	if err != nil {
		return c, fmt.Errorf("%s and %s: %w", before, after, err)
	}
	r.Evaluations[prefix+"before"], r.Evaluations[prefix+"after"] = evaluation(first), evaluation(last)
	samples := func(f *score.File) int { return len(f.Answers[0].Correct) }
	return measure.Comparison{Questions: d.Questions, Samples: samples(last), Earlier: samples(first), Before: d.Before, After: d.After,
		Difference: d.Mean, Interval: d.Interval}, nil
}

// evaluation returns the part of an evaluation that the results have.
func evaluation(f *score.File) Evaluation {
	e := Evaluation{Experts: map[string]float64{}}
	for _, s := range f.Scores {
		e.Scores = append(e.Scores, Score{s.By, s.Of, s.Questions, s.Accuracy, s.Interval, s.Calls})
	}
	for _, a := range f.Agents {
		if score, ok := a.Values[metrics.ExpertMean]; ok {
			e.Experts[a.Agent] = score
		}
		e.Seconds = max(e.Seconds, a.Values[metrics.RolloutSeconds])
	}
	return e
}

// readRecords reads the run's records and fills in the curve, tokens and seconds.
func (r *Result) readRecords(dir string) error {
	log, err := metrics.Read(dir)
	if err != nil {
		return err
	}
	r.Tokens, r.Sampled = map[string]int64{}, map[string]int64{}
	for _, l := range log.Records {
		r.add(l.Record)
	}
	if len(r.Curve) == 0 {
		return fmt.Errorf("%s has no step", dir)
	}
	return nil
}

func (r *Result) add(record metrics.Record) {
	v := record.Values
	correct, main := v[metrics.Accuracy]
	calls := v[metrics.CallsMean]
	switch record.Kind {
	case metrics.KindColdStart:
		r.Seconds.ColdStart = max(r.Seconds.ColdStart, v[metrics.LearnSeconds])
	case metrics.KindEval:
		if main {
			p := r.point(record.Step)
			p.HeldOut, p.HeldCalls = &correct, &calls
			r.Seconds.Evaluations += v[metrics.RolloutSeconds]
		}
	case metrics.KindStep:
		p := r.point(record.Step)
		if main {
			p.Correct, p.Calls = &correct, &calls
			if spread, ok := v[metrics.CallsStd]; ok {
				p.Spread = &spread
			}
			r.Seconds.Steps += v[metrics.RolloutSeconds] + v[metrics.LearnSeconds]
		}
		if p.Entropy == nil {
			p.Entropy, p.Degenerate = map[string]float64{}, map[string]float64{}
		}
		p.Entropy[record.Agent], p.Degenerate[record.Agent] = v[metrics.EntropyMean], v[metrics.GroupsDegenerate]
		r.Tokens["sampled"] += int64(v[metrics.SampledTokens])
		r.Sampled[record.Agent] += int64(v[metrics.SampledTokens])
		r.Tokens["learned"] += int64(v[metrics.TrainedTokens])
		p.Sampled = r.Tokens["sampled"]
	}
}

// point returns the curve's point for a step, and appends it if it is new. Records are in the order of steps.
func (r *Result) point(step int64) *Point {
	for i := range r.Curve {
		if r.Curve[i].Step == step {
			return &r.Curve[i]
		}
	}
	r.Curve = append(r.Curve, Point{Step: step})
	return &r.Curve[len(r.Curve)-1]
}
