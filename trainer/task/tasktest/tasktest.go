// Package tasktest checks that a task follows the rules of package task.
package tasktest

import (
	"reflect"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// maxChecked is the number of queries of a split, and of demonstrated queries of a role, that are checked.
const maxChecked = 32

// Check tests some queries of a task, and what the task offers to the agents of these roles. It reports every fault to t. It checks that
// a query is a pure function of its index, that Lookup rebuilds it from its id, and that an empty id is an error. The sizes of the
// evaluation sets add up to EvalSize, and the queries of a set have its name. Tools do not depend on the query. Demonstrations are equal
// the second time, and are of queries that Lookup finds. Query.Data must be comparable by reflect.DeepEqual.
func Check(t testing.TB, k task.Task, roles ...task.AgentRole) {
	t.Helper()
	queries := checkSets(t, k)
	for i := range int64(maxChecked) {
		queries = append(queries, k.Train(i))
		if again := k.Train(i); !reflect.DeepEqual(again, queries[len(queries)-1]) {
			t.Errorf("training query %d is %+v, and the second time %+v", i, queries[len(queries)-1], again)
		}
	}
	for _, q := range queries {
		if again, err := k.Lookup(q.ID); err != nil || !reflect.DeepEqual(again, q) {
			t.Errorf("Lookup(%q) returns %+v, %v; want %+v", q.ID, again, err, q)
		}
		if row, err := task.RowOf(q.ID); err != nil || row != q.Row {
			t.Errorf("query %q has the row %q; its id names %q, %v", q.ID, q.Row, row, err)
		}
	}
	if q, err := k.Lookup(""); err == nil {
		t.Errorf("Lookup returns %+v for an empty id, want an error", q)
	}
	for _, role := range roles {
		if w, ok := k.(task.WithTools); ok {
			checkTools(t, w, queries, role)
		}
		if w, ok := k.(task.WithDemonstrations); ok {
			checkDemonstrations(t, k, w, role)
		}
	}
}

// checkSets checks the evaluation sets, and returns the first queries of each.
func checkSets(t testing.TB, k task.Task) []task.Query {
	t.Helper()
	sizes, total := task.EvalSetSizes(k), 0
	for _, n := range sizes {
		total += n
	}
	if total != k.EvalSize() {
		t.Fatalf("the evaluation sets have %v queries, but EvalSize is %d", sizes, k.EvalSize())
	}
	var queries []task.Query
	first := 0
	names, ids := map[string]bool{}, map[string]bool{}
	for _, n := range sizes {
		for i := range min(n, maxChecked) {
			q := k.Eval(first + i)
			if again := k.Eval(first + i); !reflect.DeepEqual(again, q) {
				t.Errorf("held-out query %d is %+v, and the second time %+v", first+i, q, again)
			}
			if i == 0 && names[q.Set] {
				t.Errorf("two evaluation sets have the name %q", q.Set)
			}
			if set := k.Eval(first).Set; q.Set != set {
				t.Errorf("held-out query %q is in set %q, the first query of the set in %q", q.ID, q.Set, set)
			}
			if ids[q.ID] {
				t.Errorf("two held-out queries have the id %q", q.ID)
			}
			names[q.Set], ids[q.ID] = true, true
			queries = append(queries, q)
		}
		first += n
	}
	return queries
}

// checkTools checks that an agent's tools look the same in every query.
func checkTools(t testing.TB, k task.WithTools, queries []task.Query, role task.AgentRole) {
	t.Helper()
	want := describe(k.Tools(task.Query{}, role))
	for _, q := range queries {
		if got := describe(k.Tools(q, role)); !slices.Equal(got, want) {
			t.Errorf("the tools of %s on query %q are %q; without a query they are %q", role.Agent, q.ID, got, want)
		}
	}
}

// describe returns names, descriptions and schemas.
func describe(tools []tool.Tool) (texts []string) {
	for _, f := range tools {
		texts = append(texts, f.Name(), f.Description(), string(f.Schema()))
	}
	return texts
}

// checkDemonstrations checks that an agent's demonstrations are equal the second time, and that their queries exist.
func checkDemonstrations(t testing.TB, k task.Task, w task.WithDemonstrations, role task.AgentRole) {
	t.Helper()
	demonstrations := slices.Collect(w.Demonstrations(role, maxChecked))
	if again := slices.Collect(w.Demonstrations(role, maxChecked)); !reflect.DeepEqual(again, demonstrations) {
		t.Errorf("the demonstrations for %s differ the second time", role.Agent)
	}
	for _, d := range demonstrations {
		if _, err := k.Lookup(d.Query); err != nil {
			t.Errorf("a demonstration for %s is of query %q: %v", role.Agent, d.Query, err)
		}
		if len(d.Segments) == 0 || !slices.ContainsFunc(d.Segments, func(s task.Segment) bool { return s.Sampled }) {
			t.Errorf("a demonstration for %s on query %q has no sampled segment", role.Agent, d.Query)
		}
	}
}
