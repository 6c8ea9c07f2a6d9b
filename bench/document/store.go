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

// writeStoreTargets compares the loads at the target rate with the targets for one Redis.
func (m *machine) writeStoreTargets(b *strings.Builder) {
	if m.store == nil {
		return
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
			verdict = "missed. " + oneRedis
		}
		fmt.Fprintf(b, "| store, %d workers on one Redis, %s | %d invocations/s, p99 < %s, memory flat | %.0f/s, p99 %s, memory %s | %s |\n", l.Workers, overTLS(l.TLS),
			store.TargetRate, measure.Seconds(store.TargetP99), l.PerSecond, measure.Seconds(l.ExchangeP99), memory, verdict)
	}
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
	b.WriteString("The network traffic of a main agent and a sub-agent together, and the duration of calls on an idle server:\n\n")
	head(b, "what", store.CostHead)
	for _, c := range r.Costs {
		line(b, c.What+", "+overTLS(c.TLS), c.Cells())
	}
	b.WriteString("\nIn a load, invocations become due at a steady rate, even if earlier ones are not answered yet, and workers answer at once. " +
		"An exchange lasts from an invocation's due time to its answer. Above the sustained rate it measures the length of a queue. " +
		"Memory is Redis's memory in the second half of the load.\n\n")
	head(b, "load", store.LoadHead)
	for _, l := range r.Loads {
		line(b, fmt.Sprintf("%d workers in %d processes, %s, %.0f s", l.Workers, l.Clients, overTLS(l.TLS), l.Seconds), l.Cells())
	}
}

func head(b *strings.Builder, first string, rest []string) {
	line(b, first, rest)
	b.WriteString("|---" + strings.Repeat("|---", len(rest)) + "|\n")
}

func line(b *strings.Builder, first string, rest []string) {
	b.WriteString("| " + strings.Join(append([]string{first}, rest...), " | ") + " |\n")
}
