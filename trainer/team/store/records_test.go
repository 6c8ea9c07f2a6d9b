package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
)

func record(n int) []byte { return fmt.Appendf(nil, `{"step":%d}`, n) }

// TestRecords: every worker reads the records of all workers in the same order, and continues behind the last record that it has read.
func TestRecords(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		ctx := t.Context()
		boss, help := pair(t, b, Options{})
		if got, last, err := help.Display.Records(ctx, ""); err != nil || len(got) > 0 || last != "" {
			t.Fatalf("before any record: got %v, last id %q; want none; error %v", got, last, err)
		}
		const n = recordPage + 10
		var want []Record
		for i := range n {
			m := []*Member{boss, help}[i%2]
			must(t, m.Display.PublishRecord(ctx, record(i)))
			want = append(want, Record{m.Agent(), record(i)})
		}
		all, last, err := help.Display.Records(ctx, "")
		if diff := cmp.Diff(want, all); err != nil || diff != "" {
			t.Fatalf("all records (-want +got), error %v:\n%s", err, diff)
		}
		if got, again, err := boss.Display.Records(ctx, last); err != nil || len(got) > 0 || again != last {
			t.Errorf("behind the last record: got %v, last id %q; want none and %q; error %v", got, again, last, err)
		}
		must(t, boss.Display.PublishRecord(ctx, record(n)))
		if got, _, err := help.Display.Records(ctx, last); err != nil || !cmp.Equal(got, []Record{{"boss", record(n)}}) {
			t.Errorf("after one more record: got %v, want only it; error %v", got, err)
		}
	})
}

// TestRecordsAreBounded: the oldest records are deleted when there are too many. Records and
// activities that are too long or not JSON objects are refused by writers and by readers.
func TestRecordsAreBounded(t *testing.T) {
	b := embeddedBackend(t)
	boss, help := pair(t, b, Options{})
	ctx, key := t.Context(), boss.place.key("records")
	for i := range maxRecords + 500 {
		must(t, b.raw.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{"agent", "boss", "record", record(i)}}).Err())
	}
	must(t, boss.Display.PublishRecord(ctx, record(-1)))
	all, _, err := help.Display.Records(ctx, "")
	if err != nil || len(all) > maxRecords+100 || len(all) < maxRecords || string(all[len(all)-1].JSON) != string(record(-1)) {
		t.Errorf("%d records are left, want about %d with the newest last; error %v", len(all), maxRecords, err)
	}
	for _, text := range []string{"", "17", `{"a":`, `{"a":"` + strings.Repeat("x", MaxDisplayBytes) + `"}`} {
		if boss.Display.PublishRecord(ctx, []byte(text)) == nil || boss.Display.PublishActivity(ctx, []byte(text)) == nil {
			t.Errorf("publishing %.20q: got no error", text)
		}
		must(t, b.raw.Del(ctx, key, boss.place.key("activity")).Err())
		must(t, b.raw.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{"agent", "boss", "record", text}}).Err())
		must(t, b.raw.HSet(ctx, boss.place.key("activity"), "boss", text).Err())
		var malformed *MalformedError
		if _, _, err := help.Display.Records(ctx, ""); !errors.As(err, &malformed) || !strings.HasPrefix(malformed.Key, key) {
			t.Errorf("reading the record %.20q: got error %v, want a MalformedError", text, err)
		}
		if _, err := help.Display.Activities(ctx); !errors.As(err, &malformed) || malformed.Key != boss.place.key("activity")+" boss" {
			t.Errorf("reading the activity %.20q: got error %v, want a MalformedError", text, err)
		}
	}
}

// TestActivities: an agent's activity replaces its earlier one. A worker that has lost its place cannot publish activities or records.
func TestActivities(t *testing.T) {
	b := embeddedBackend(t)
	boss, help := pair(t, b, Options{})
	ctx := t.Context()
	must(t, boss.Display.PublishActivity(ctx, []byte(`{"phase":"step-0"}`)))
	must(t, boss.Display.PublishActivity(ctx, []byte(`{"phase":"learn"}`)))
	must(t, b.raw.HIncrBy(ctx, boss.place.key("epochs"), "help", 1).Err())
	var fenced *FencedError
	if err := help.Display.PublishActivity(ctx, []byte("{}")); !errors.As(err, &fenced) {
		t.Errorf("activity of a replaced worker: got error %v, want a FencedError", err)
	}
	if err := help.Display.PublishRecord(ctx, []byte("{}")); !errors.As(err, &fenced) {
		t.Errorf("record of a replaced worker: got error %v, want a FencedError", err)
	}
	if got, err := help.Display.Activities(ctx); err != nil || !cmp.Equal(got, map[string]json.RawMessage{"boss": json.RawMessage(`{"phase":"learn"}`)}) {
		t.Errorf("got activities %s, want boss's second one; error %v", slices.Collect(maps.Values(got)), err)
	}
}

// TestFinishedRollouts: the newest outcomes can be read together with the calls between the agents and
// their answers. The newest phase with outcomes is chosen, and in it the query with most of them.
func TestFinishedRollouts(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		ctx := t.Context()
		boss, help := pair(t, b, Options{})
		if _, ids, err := help.Display.NewestOutcomes(ctx, 4); err != nil || len(ids) > 0 {
			t.Fatalf("before any outcome: got ids %v, want none; error %v", ids, err)
		}
		finish := func(p Phase, query string, k, calls int) {
			t.Helper()
			for i := range calls {
				v := Invocation{Phase: p, Query: query, Rollout: k, Agent: "help", Index: i, Task: fmt.Sprintf("task %d of %d", i, k)}
				must(t, boss.Invocations.Submit(ctx, v))
				if i != 1 { // the second call is not answered
					must(t, help.Invocations.Complete(ctx, v, Result{Text: "answer to " + v.Task}))
				}
			}
			must(t, boss.Phases.PublishOutcome(ctx, p, Outcome{Query: query, Rollout: k, Answer: fmt.Sprint("answer ", k), Calls: map[string]int{"help": calls}}))
		}
		must(t, boss.Phases.Begin(ctx, TrainPhase(0), Plan{Queries: []string{"a/1", "b"}, Rollouts: 12}))
		for _, k := range []int{10, 2, 0, 7} {
			finish(TrainPhase(0), "a/1", k, 0)
		}
		finish(TrainPhase(0), "b", 3, 0)
		must(t, boss.Phases.Begin(ctx, TrainPhase(1), Plan{Queries: []string{"c"}, Rollouts: 2}))
		must(t, boss.Checkpoints.PublishPart(ctx, 2, Part{}))

		p, ids, err := help.Display.NewestOutcomes(ctx, 3)
		if want := []string{"a/1/0", "a/1/2", "a/1/7"}; err != nil || p != TrainPhase(0) || !slices.Equal(ids, want) {
			t.Fatalf("got %s %v, want step-0 %v, the query with most outcomes; error %v", p, ids, want, err)
		}
		finish(TrainPhase(1), "c", 1, 10)
		p, ids, err = help.Display.NewestOutcomes(ctx, 3)
		if err != nil || p != TrainPhase(1) || !slices.Equal(ids, []string{"c/1"}) {
			t.Fatalf("got %s %v, want step-1 [c/1]; error %v", p, ids, err)
		}
		got, err := help.Display.FinishedRollouts(ctx, p, append(ids, "c/0"))
		must(t, err)
		if len(got) != 1 || got[0].Answer != "answer 1" || got[0].Calls["help"] != 10 || len(got[0].Delegations) != listedCalls {
			t.Fatalf("got rollouts %+v, want one with 10 calls, %d of them shown", got, listedCalls)
		}
		for i, d := range got[0].Delegations {
			task := fmt.Sprintf("task %d of 1", i)
			if d.Task != task || d.Index != i || (d.Answer == nil) != (i == 1) || d.Answer != nil && d.Answer.Text != "answer to "+task {
				t.Errorf("call %d: got %+v with answer %+v, want task %q", i, d.Invocation, d.Answer, task)
			}
		}
	})
}

// TestStatusFromInside: a worker can read the run's status through its own connection, also with an embedded store.
func TestStatusFromInside(t *testing.T) {
	s, err := Open(t.Context(), Options{Run: "alone"})
	must(t, err)
	closeAfter(t, s)
	boss, err := s.Join(t.Context(), "boss", team, ignore)
	must(t, err)
	st, err := boss.Display.Status(t.Context())
	if err != nil || len(st.Agents) != 2 || !st.Agents[0].Alive || st.Agents[1].Alive {
		t.Errorf("got status %+v, want two agents with only the first alive; error %v", st, err)
	}
}
