package main

import (
	"fmt"
	"strings"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bench/store"
)

func overTLS(yes bool) string {
	if yes {
		return "with TLS"
	}
	return "without TLS"
}

// storeTargets returns rows of the table of targets: the loads at the target rate on one Redis.
func (m *machine) storeTargets(n *notes) (rows []string) {
	if m.store == nil {
		return nil
	}
	for _, l := range m.store.Loads {
		if l.Rate != store.TargetRate {
			continue
		}
		memory, verdict := "flat", "met"
		if !l.Flat() {
			memory = "growing"
		}
		if !l.Prompt() || !l.Flat() {
			verdict = n.mark("missed", oneRedis)
		}
		rows = append(rows, fmt.Sprintf("| store, %d workers on one Redis, %s | %d invocations/s, p99 < %s, memory flat | %.0f/s, p99 %s, memory %s | %s |",
			l.Workers, overTLS(l.TLS), store.TargetRate, measure.Seconds(store.TargetP99), l.PerSecond, measure.Seconds(l.ExchangeP99), memory, verdict))
	}
	return rows
}

// writeStore writes the tables of the store's costs and of the loads on one Redis.
func (m *machine) writeStore(b *strings.Builder) {
	r := m.store
	if r == nil {
		return
	}
	fmt.Fprintf(b, "\n### Store\n\nMeasured %s at commit %s, load before %.2f, on one redis-server", r.Date, r.Machine.Commit, r.LoadBefore)
	if len(r.Loads) > 0 {
		fmt.Fprintf(b, " %s", r.Loads[0].RedisVersion)
	}
	fmt.Fprintf(b, " of the same machine with `%s`.\n\n", strings.TrimSpace(strings.ReplaceAll(strings.Join(r.Settings, " "), "  ", ` "" `)))
	var costs, loads []string
	for _, c := range r.Costs {
		costs = append(costs, line(c.What+", "+overTLS(c.TLS), c.Cells()))
	}
	for _, l := range r.Loads {
		loads = append(loads, line(fmt.Sprintf("%d workers in %d processes, %s, %.0f s", l.Workers, l.Clients, overTLS(l.TLS), l.Seconds), l.Cells()))
	}
	table(b, "The network traffic of a main agent and a sub-agent together, and the duration of calls on an idle server:\n\n",
		line("what", store.CostHead), costs)
	table(b, "\nIn a load, invocations become due at a steady rate, even if earlier ones are not answered yet, and workers answer at once. "+
		"An exchange lasts from an invocation's due time to its answer. Above the sustained rate it measures the length of a queue. "+
		"Memory is Redis's memory in the second half of the load.\n\n", line("load", store.LoadHead), loads)
}

// line returns a row of a table.
func line(first string, rest []string) string {
	return "| " + strings.Join(append([]string{first}, rest...), " | ") + " |"
}
