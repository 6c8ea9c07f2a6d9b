package main

import (
	"fmt"
	"strings"
)

// late returns a table that shows whether an arm's accuracy falls after it has learned. It has the accuracy in the middle third and in
// the last third of the tokens, the highest evaluation, and the end. The highest of many evaluations is above the true accuracy,
// because each is a sample of answers, so the thirds are the better test. late returns "" if a run has too few evaluations.
func late(r *Results, arms []arm) string {
	const fewest = 9
	var b strings.Builder
	b.WriteString("\n| arm | seeds | middle third | last third | last minus middle [95 %] | highest evaluation | end | highest minus end [95 %] |\n" +
		"|---|---|---|---|---|---|---|---|\n")
	rows := 0
	for _, a := range arms {
		var middle, last, change, highest, end, fall []float64 // by seed
		for _, x := range r.Runs {
			if x.Arm != a.name {
				continue
			}
			if len(x.Curve) < fewest {
				return ""
			}
			final, top := x.Curve[len(x.Curve)-1], 0.0
			for _, p := range x.Curve {
				top = max(top, p.Accuracy)
			}
			m, l := averageBetween(x.Curve, final.Tokens/3, final.Tokens*2/3), averageBetween(x.Curve, final.Tokens*2/3, final.Tokens)
			middle, last, change = append(middle, m), append(last, l), append(change, l-m)
			highest, end, fall = append(highest, top), append(end, final.Accuracy), append(fall, top-final.Accuracy)
		}
		if len(change) < 2 {
			continue
		}
		rows++
		fmt.Fprintf(&b, "| %s | %d | %.3f | %.3f | %s | %.3f | %.3f | %s |\n", a.title, len(change), mean(middle), mean(last),
			interval(change), mean(highest), mean(end), interval(fall))
	}
	if rows == 0 {
		return ""
	}
	return b.String()
}
