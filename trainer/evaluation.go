package trainer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/run/score"
	"github.com/mgrpo/mgrpo/trainer/show/console"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// Evaluation is the result of Evaluate.
type Evaluation struct {
	Checkpoint string           // the folder of the checkpoint
	Dir        string           // the folder of the trajectories; "": some could not be saved, as a note has reported
	Records    []metrics.Record // one for each agent, the main agent first
	Samples    int              // rollouts of each query
	Answers    []score.Answers  // nil if some rollouts have no score, or if the main agent runs elsewhere

	Difference *score.Difference // to an earlier evaluation of the same questions; may be nil
}

// Err returns an error if some rollouts have no score, so that the evaluation has no accuracy.
func (e Evaluation) Err() error {
	for _, r := range e.Records {
		if r.Unknown != "" {
			return errors.New(r.Unknown)
		}
	}
	return nil
}

// Accuracy returns the main agent's accuracy on the held-out queries. It returns an error if some rollouts have no score, or
// if the main agent runs elsewhere.
func (e Evaluation) Accuracy() (float64, error) {
	if err := e.Err(); err != nil {
		return 0, err
	}
	for _, r := range e.Records {
		if accuracy, ok := r.Values[metrics.Accuracy]; ok {
			return accuracy, nil
		}
	}
	return 0, errors.New("the evaluation has no record of the main agent")
}

// Record returns the record of an agent. ok is false if the agent runs elsewhere.
func (e Evaluation) Record(agent string) (r metrics.Record, ok bool) {
	for _, r := range e.Records {
		if r.Agent == agent {
			return r, true
		}
	}
	return metrics.Record{}, false
}

// Scores returns scores by set, kind, level and number of parts.
func (e Evaluation) Scores() []metrics.Score {
	for _, r := range e.Records {
		if len(r.Scores) > 0 {
			return r.Scores
		}
	}
	return nil
}

// costs returns the tokens that all agents read and wrote for a question, and the seconds it took. The seconds are the time
// of the whole evaluation, whose conversations overlap, divided by the number of questions.
func (e Evaluation) costs() (tokens, seconds float64, known bool) {
	questions := 0.
	for _, s := range e.Scores() {
		if s.By != "" {
			continue
		}
		if s.Tokens == 0 {
			return 0, 0, false
		}
		questions, tokens = questions+float64(s.Questions), tokens+float64(s.Questions*s.Samples)*s.Tokens
	}
	for _, r := range e.Records {
		seconds = max(seconds, r.Values[metrics.RolloutSeconds])
	}
	return tokens / questions, seconds / questions, questions > 0
}

// JSON returns the evaluation as an indented object.
func (e Evaluation) JSON() ([]byte, error) {
	out := score.File{Checkpoint: e.Checkpoint, Samples: e.Samples, Scores: e.Scores(), Difference: e.Difference,
		Answers: append([]score.Answers{}, e.Answers...)}
	if tokens, seconds, known := e.costs(); known {
		out.Tokens, out.Seconds = &tokens, &seconds
	}
	for _, r := range e.Records {
		r.Scores = nil
		out.Agents = append(out.Agents, r)
	}
	text, err := json.MarshalIndent(out, "", "  ")
	return append(text, '\n'), err
}

func (e Evaluation) trajectories() string {
	if e.Dir == "" {
		return "could not be saved"
	}
	return archive.TrajectoriesDir(e.Dir)
}

// String returns the evaluation as a table of at most 80 columns.
func (e Evaluation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "checkpoint    %s\n", e.Checkpoint)
	for _, r := range e.Records {
		if r.Unknown != "" {
			fmt.Fprintln(&b, console.Printable(r.Unknown))
		}
		accuracy, ok := r.Values[metrics.Accuracy]
		if !ok {
			continue
		}
		right, queries := map[int]int64{}, int64(0)
		for c, n := range r.Counts[metrics.RightSamples] {
			if c, err := strconv.Atoi(c); err == nil {
				right[c] = n
				queries += n
			}
		}
		fmt.Fprintf(&b, "held out      %d queries x %d samples\n", queries, e.Samples)
		fmt.Fprintf(&b, "accuracy      %.4f", accuracy)
		if std, ok := r.Values[metrics.AccuracyStd]; ok {
			fmt.Fprintf(&b, "  (standard deviation over the samples %.4f)", std)
		}
		fmt.Fprintln(&b)
		for _, k := range score.SampleCounts(e.Samples) {
			fmt.Fprintf(&b, "%-13s %.4f\n", fmt.Sprintf("pass@%d", k), score.PassAtK(right, e.Samples, k))
		}
	}
	b.WriteByte('\n')
	if scores := e.Scores(); len(scores) > 0 {
		fmt.Fprintf(&b, "%s\n", scoreTable(scores))
	}
	if d := e.Difference; d != nil {
		fmt.Fprintf(&b, "difference    %+.4f  (95 %%: %+.4f to %+.4f) to the other evaluation of these %d questions\n\n", d.Mean, d.Interval[0],
			d.Interval[1], d.Questions)
	}
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "agent\tn\tscore\tformat\tcalls\tturns\ttokens\tmalformed")
	for _, r := range e.Records {
		mean, ok := r.Values[metrics.Accuracy]
		if !ok {
			mean, ok = r.Values[metrics.ExpertMean]
		}
		fmt.Fprintf(t, "%.24s\t%.0f\t%s", r.Agent, r.Values[metrics.Trajectories], formatFigure(mean, ok, 3))
		for _, c := range []struct {
			name   string
			digits int
		}{{metrics.FormatValid, 3}, {metrics.CallsMean, 2}, {metrics.TurnsMean, 1}, {metrics.TokensMean, 1}, {metrics.MalformedMean, 2}} {
			v, ok := r.Values[c.name]
			fmt.Fprint(t, "\t", formatFigure(v, ok, c.digits))
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	if tokens, seconds, known := e.costs(); known {
		fmt.Fprintf(&b, "\na question took %.0f tokens and %.2f seconds, summed over its samples\n", tokens, seconds)
	}
	fmt.Fprintf(&b, "\ntrajectories  %s\n", e.trajectories())
	return b.String()
}

// scoreTable formats scores as a table of at most 80 columns.
func scoreTable(scores []metrics.Score) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "questions\tn\taccuracy\t95 %\tpass@k\tbest@k\tcalls\ttokens")
	for _, s := range scores {
		name := cmp.Or(s.Set, "task.eval")
		if s.By != "" {
			name = fmt.Sprintf("  %s %s", s.By, cmp.Or(console.Printable(s.Of), "-"))
		}
		fmt.Fprintf(t, "%.20s\t%d\t%.4f\t%.3f-%.3f\t%.4f\t%.4f\t%.2f\t%s\n", name, s.Questions, s.Accuracy, s.Interval[0], s.Interval[1],
			s.Pass[s.Samples], s.Best[s.Samples], s.Calls, formatFigure(s.Tokens, s.Tokens > 0, 0))
	}
	t.Flush()
	return b.String()
}

// formatFigure formats a number with some decimals; "-" if it is unknown.
func formatFigure(v float64, known bool, decimals int) string {
	if !known {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}
