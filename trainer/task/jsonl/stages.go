package jsonl

import (
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// Stage is a part of a curriculum: the training rows that it takes. An empty list and a 0 mean any.
type Stage struct {
	Name               string
	Kinds, Levels      []string
	MinParts, MaxParts int
}

// stage is a Stage with its rows.
type stage struct {
	rows  []int // of Task.train
	order *task.Order
}

func (s Stage) takes(r Row) bool {
	return (len(s.Kinds) == 0 || slices.Contains(s.Kinds, r.Kind)) && (len(s.Levels) == 0 || slices.Contains(s.Levels, r.Level)) &&
		len(r.Parts) >= s.MinParts && (s.MaxParts == 0 || len(r.Parts) <= s.MaxParts)
}

func (s Stage) open(seed uint64, train []Row) (stage, error) {
	var rows []int
	for i, r := range train {
		if s.takes(r) {
			rows = append(rows, i)
		}
	}
	if len(rows) == 0 {
		return stage{}, fmt.Errorf("the stage %s of the curriculum takes none of the %d training rows", s.Name, len(train))
	}
	return stage{rows, task.NewOrder(seed, len(rows))}, nil
}

// visitsOfStage are more visits of a row than a stage has. Those of stage s are counted from (s + 1) visitsOfStage on, so that
// a row that several stages take has other random numbers in each.
const visitsOfStage = 1_000_000

// TrainStage returns training query i of a stage.
func (t *Task) TrainStage(stage int, i int64) task.Query {
	s := t.stages[stage]
	row, visit := s.order.At(i)
	q := query(splitTrain, t.train[s.rows[row]])
	q.ID = task.VisitID(q.Row, visit+int64(stage+1)*visitsOfStage)
	return q
}
