package jsonl

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/task/verify"
)

func TestStages(t *testing.T) {
	exact, err := verify.New(verify.Options{Kind: verify.Exact})
	if err != nil {
		t.Fatal(err)
	}
	var train strings.Builder
	for i := range 12 {
		parts := strings.Repeat(`{"question":"?","answer":"1"},`, i%3) + `{"question":"?","answer":"1"}`
		fmt.Fprintf(&train, `{"id":"%d","question":"?","answer":"1","kind":"k%d","level":%d,"parts":[%s]}`+"\n", i, i%2, i/6, parts)
	}
	path := write(t, train.String())
	s := Options{Train: path, Eval: path, Fields: DefaultFields(), Main: exact, Stages: []Stage{
		{Name: "one", Kinds: []string{"k1"}, MaxParts: 2}, {Name: "two", Levels: []string{"1", "2"}, MinParts: 2}, {Name: "all"}}}
	opened, err := Open(s)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for stage, want := range []map[string]bool{{"1": true, "3": true, "7": true, "9": true}, {"7": true, "8": true, "10": true, "11": true}, nil} {
		rows := map[string]bool{}
		n := len(want)
		if want == nil {
			n = 12
		}
		for i := range int64(2 * n) {
			q := opened.TrainStage(stage, i)
			rows[strings.TrimPrefix(q.Row, "train-")] = true
			if ids[q.ID] {
				t.Errorf("stage %d visits %s again", stage, q.ID)
			}
			ids[q.ID] = true
			again, err := opened.Lookup(q.ID)
			if err != nil || !reflect.DeepEqual(again, q) || !reflect.DeepEqual(q, opened.TrainStage(stage, i)) {
				t.Errorf("%s is rebuilt as %+v, %v", q.ID, again, err)
			}
		}
		if want != nil && !reflect.DeepEqual(rows, want) || want == nil && len(rows) != 12 {
			t.Errorf("stage %d has the rows %v", stage, rows)
		}
	}
	for i := range int64(24) {
		if id := opened.Train(i).ID; ids[id] {
			t.Errorf("after the stages %s is visited again", id)
		}
	}
	s.Stages = []Stage{{Name: "turns", MinParts: 2, Balance: true}}
	if opened, err = Open(s); err != nil {
		t.Fatal(err)
	}
	taken := map[string]int{}
	for i := range int64(24) { // of kinds k0 and k1, with four rows each
		row := strings.TrimPrefix(opened.TrainStage(0, i).Row, "train-")
		n, err := strconv.Atoi(row)
		if err != nil || n%2 != int(i%2) {
			t.Errorf("query %d is row %s: %v", i, row, err)
		}
		taken[row]++
	}
	if len(taken) != 8 || taken["1"] != 3 || taken["8"] != 3 {
		t.Errorf("taken are %v", taken)
	}
	s.Stages = []Stage{{Name: "none", Kinds: []string{"k2"}}}
	if _, err := Open(s); err == nil || !strings.Contains(err.Error(), "the stage none of the curriculum matches none of the 12 training rows") {
		t.Error(err)
	}
}
