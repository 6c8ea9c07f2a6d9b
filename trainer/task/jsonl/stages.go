package jsonl

import (
	"fmt"
	"maps"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// Stage is a part of a curriculum. It selects training rows. An empty list and a 0 select all rows.
type Stage struct {
	Name               string
	Kinds, Levels      []string
	MinParts, MaxParts int
	Balance            bool // kinds take turns
}

// stage is a Stage with its rows, in lists that take turns: one list, or one for each kind.
type stage []rowCycle

type rowCycle struct {
	rows  []int // indices into Task.train
	order *task.RowOrder
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
		return nil, fmt.Errorf("the stage %s of the curriculum matches none of the %d training rows", s.Name, len(train))
	}
	var all stage
	for _, kind := range slices.Sorted(maps.Keys(rows)) {
		all = append(all, rowCycle{rows[kind], task.NewRowOrder(seed, len(rows[kind]))})
	}
	return all, nil
}

// visitsOfStage is larger than the number of visits of a row in a stage. Visits in stage s are counted from (s + 1)
// visitsOfStage, so that a row in several stages has different random numbers in each. Replacement queries, which have
// far larger numbers, may exceed it.
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
