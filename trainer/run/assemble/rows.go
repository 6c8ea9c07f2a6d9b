package assemble

import (
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// RowWarnings returns a text for each stage of the curriculum (without one, for the whole training) whose rows are fewer than the
// queries of a step. Such a step has several groups of the same row.
func RowWarnings(cfg *config.Config, t task.Task) (out []string) {
	n := int64(cfg.Task.QueriesPerStep)
	find := func(where string, query func(i int64) task.Query) {
		rows := map[string]bool{}
		for i := range n {
			rows[query(i).Row] = true
		}
		if int64(len(rows)) < n {
			out = append(out, fmt.Sprintf("the %d queries of a step are made from only %d rows of the task%s, so each step repeats some of them: add "+
				"rows, or lower task.queries_per_step", n, len(rows), where))
		}
	}
	if len(cfg.Task.Curriculum) == 0 {
		find("", t.Train)
	}
	for i, s := range cfg.Task.Curriculum {
		if staged, ok := t.(task.WithCurriculum); ok {
			find(" in the stage "+s.Name, func(at int64) task.Query { return staged.TrainStage(i, at) })
		}
	}
	return out
}
