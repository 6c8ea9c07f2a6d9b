package measure

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"text/tabwriter"
)

// Compare returns a table of two files of results: of the same suite, or of two runs that learned (bench/studies/learned).
func Compare(before, after string) (string, error) {
	isSuite, err := hasRows(before)
	if err != nil {
		return "", err
	}
	if isSuite {
		return compareSuites(before, after)
	}
	return compareRuns(before, after)
}

func hasRows(path string) (bool, error) {
	keys, err := ReadPart[struct{ Rows, Questions json.RawMessage }](path)
	if err != nil {
		return false, err
	}
	if keys.Rows == nil && keys.Questions == nil {
		return false, fmt.Errorf("%s: neither results of a suite of mgrpo bench (rows) nor of a run (questions)", path)
	}
	return keys.Rows != nil, nil
}

// compareSuites prints our medians in both files. The range is between the extreme quotients of the 20th and 80th percentiles.
func compareSuites(before, after string) (string, error) {
	a, err := Read(before)
	if err != nil {
		return "", err
	}
	b, err := Read(after)
	if err != nil {
		return "", err
	}
	if a.Suite != b.Suite {
		return "", fmt.Errorf("%s is of the suite %s, %s of the suite %s", before, a.Suite, after, b.Suite)
	}
	var text strings.Builder
	for _, of := range []struct {
		file string
		r    *Results
	}{{before, a}, {after, b}} {
		fmt.Fprintf(&text, "%s: %s, %s, %s, commit %s\n", of.file, of.r.Date, of.r.Machine.CPU, of.r.Machine.ISA, of.r.Machine.Commit)
	}
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\ncase\tcache\tbefore\tafter\ttimes as fast\trange\tx peers before\tafter")
	both := 0
	for _, row := range b.Rows {
		for _, old := range a.Rows {
			now, then := row.result(Ours), old.result(Ours)
			if !row.SameCase(old) || row.Cache != old.Cache || row.DType != old.DType || now == nil || then == nil {
				continue
			}
			both++
			fmt.Fprintf(w, "%s, %s, %s\t%s\t%s\t%s\t%.2f\t%.2f to %.2f\t%s\t%s\n", row.Name, row.Shape, row.DType, row.Cache, Seconds(then.Median),
				Seconds(now.Median), then.Median/now.Median, then.P20/now.P80, then.P80/now.P20, ratios(old), ratios(row))
		}
	}
	if both == 0 {
		return "", errors.New("the two files have no case in common")
	}
	w.Flush()
	return text.String(), nil
}

func ratios(r Row) string {
	var all []string
	for _, p := range r.Providers {
		if x, ok := r.Ratio[p.Name]; ok {
			all = append(all, fmt.Sprintf("%s %.2f", p.Name, x))
		}
	}
	return strings.Join(all, ", ")
}

// Comparison compares two evaluations of the same held-out questions.
type Comparison struct {
	Questions  int        `json:"questions"`
	Samples    int        `json:"samples"`        // answers to each question in the later evaluation
	Earlier    int        `json:"samples_before"` // answers to each question in the earlier evaluation
	Before     float64    `json:"before"`         // accuracy
	After      float64    `json:"after"`
	Difference float64    `json:"difference"`
	Interval   [2]float64 `json:"difference_interval"` // 95 %, paired by question
}

// Accuracies is the part of a run's file (bench/studies/learned) that Compare reads: the evaluations before and after the run.
type Accuracies struct {
	Comparison            // sampled at the temperature of training
	Greedy     Comparison `json:"greedy"`
}

// compareRuns prints the accuracies of two runs at their ends, and the differences with unpaired intervals.
func compareRuns(before, after string) (string, error) {
	var runs [2]*Accuracies
	for i, path := range []string{before, after} {
		var err error
		if runs[i], err = ReadPart[Accuracies](path); err != nil {
			return "", err
		}
		if runs[i].Questions == 0 {
			return "", fmt.Errorf("%s: no results of a run", path)
		}
	}
	a, b := runs[0], runs[1]
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "accuracy\t%s\t%s\tdifference\t95 %% interval, unpaired\n", before, after)
	line := func(what string, x float64, n int, y float64, m int) {
		if n == 0 || m == 0 {
			return
		}
		d, interval := unpaired(x, n, y, m)
		fmt.Fprintf(w, "%s\t%.3f of %d\t%.3f of %d\t%+.3f\t%+.3f to %+.3f\n", what, x, n, y, m, d, interval[0], interval[1])
	}
	line("at the end", a.After, a.Questions, b.After, b.Questions)
	line("at the end, greedy", a.Greedy.After, a.Greedy.Questions, b.Greedy.After, b.Greedy.Questions)
	line("before the steps", a.Before, a.Questions, b.Before, b.Questions)
	line("before the steps, greedy", a.Greedy.Before, a.Greedy.Questions, b.Greedy.Before, b.Greedy.Questions)
	w.Flush()
	return text.String(), nil
}

// unpaired returns the difference after - before of two accuracies that were measured on
// different questions or in independent runs, with its 95 % interval. This is Newcombe's method
// 10 (Statistics in Medicine 17, 1998), which combines the Wilson intervals of both. Several
// answers to one question count as one, so the interval is conservative.
func unpaired(before float64, questionsBefore int, after float64, questionsAfter int) (difference float64, interval [2]float64) {
	b, a := wilson(before, questionsBefore), wilson(after, questionsAfter)
	difference = after - before
	down := math.Hypot(after-a[0], b[1]-before)
	up := math.Hypot(a[1]-after, before-b[0])
	return difference, [2]float64{difference - down, difference + up}
}

// wilson returns the 95 % score interval of a proportion of n.
func wilson(p float64, n int) [2]float64 {
	const z = 1.959964
	m := float64(n)
	centre := (p + z*z/(2*m)) / (1 + z*z/m)
	half := z / (1 + z*z/m) * math.Sqrt(p*(1-p)/m+z*z/(4*m*m))
	return [2]float64{centre - half, centre + half}
}
