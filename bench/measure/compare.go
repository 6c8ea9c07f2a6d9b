package measure

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/mgrpo/mgrpo/trainer/run/score"
)

// Compare returns a table of two files of results: of the same suite, or of two runs that learned (bench/learned).
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
	data, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	var keys struct{ Rows, Questions json.RawMessage }
	if err := json.Unmarshal(data, &keys); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
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

// accuracies is a part of the file of a run.
type accuracies struct {
	Questions int
	Before    float64
	After     float64
	Greedy    struct {
		Questions int
		Before    float64
		After     float64
	}
}

// compareRuns prints the accuracies of two runs at their ends, and the differences with unpaired intervals.
func compareRuns(before, after string) (string, error) {
	var runs [2]accuracies
	for i, path := range []string{before, after} {
		data, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(data, &runs[i])
		}
		if err == nil && runs[i].Questions == 0 {
			err = errors.New("no results of a run")
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
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
		d, interval := score.Unpaired(x, n, y, m)
		fmt.Fprintf(w, "%s\t%.3f of %d\t%.3f of %d\t%+.3f\t%+.3f to %+.3f\n", what, x, n, y, m, d, interval[0], interval[1])
	}
	line("at the end", a.After, a.Questions, b.After, b.Questions)
	line("at the end, greedy", a.Greedy.After, a.Greedy.Questions, b.Greedy.After, b.Greedy.Questions)
	line("before the steps", a.Before, a.Questions, b.Before, b.Questions)
	line("before the steps, greedy", a.Greedy.Before, a.Greedy.Questions, b.Greedy.Before, b.Greedy.Questions)
	w.Flush()
	return text.String(), nil
}
