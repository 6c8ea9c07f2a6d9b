package jsonl

import (
	"fmt"
	"maps"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// Stage is a part of a curriculum: the training rows that it takes. An empty list and a 0 mean any.
type Stage struct {
	Name               string
	Kinds, Levels      []string
	MinParts, MaxParts int
	Balance            bool // kinds take turns
}

// stage is a Stage with its rows, in lists that take turns: one, or one for each kind.
type stage []turn

type turn struct {
	rows  []int // of Task.train
	order *task.Order
}

func (s Stage) takes(r Row) bool {
	return (len(s.Kinds) == 0 || slices.Contains(s.Kinds, r.Kind)) && (len(s.Levels) == 0 || slices.Contains(s.Levels, r.Level)) &&
		len(r.Parts) >= s.MinParts && (s.MaxParts == 0 || len(r.Parts) <= s.MaxParts)
}

func (s Stage) open(seed uint64, train []Row) (stage, error) {
	rows := map[string][]int{}
	for i, r := range train {
		if !s.takes(r) {
			continue
		}
		list := ""
		if s.Balance {
			list = r.Kind
		}
		rows[list] = append(rows[list], i)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("the stage %s of the curriculum takes none of the %d training rows", s.Name, len(train))
	}
	var all stage
	for _, kind := range slices.Sorted(maps.Keys(rows)) {
		all = append(all, turn{rows[kind], task.NewOrder(seed, len(rows[kind]))})
	}
	return all, nil
}

// visitsOfStage are more visits of a row than the steps of a stage make. Those of stage s are counted from (s + 1) visitsOfStage on, so
// that a row that several stages take has other random numbers in each. Replacements, whose queries are numbered from far above, may go beyond it.
const visitsOfStage = 1_000_000

// TrainStage returns training query i of a stage.
func (t *Task) TrainStage(stage int, i int64) task.Query {
	lists := int64(len(t.stages[stage]))
	list := t.stages[stage][i%lists]
	row, visit := list.order.At(i / lists)
	q := query(splitTrain, t.train[list.rows[row]])
	q.ID = task.VisitID(q.Row, visit+int64(stage+1)*visitsOfStage)
	return q
}
