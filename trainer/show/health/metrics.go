package health

import (
	"context"
	"maps"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// desc returns the description of a metric of a process, or of an agent.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("mgrpo_"+name, help, labels, nil)
}

var (
	ready      = desc("worker_ready", "1 when the agent's worker has its model loaded and its place in the run.", "agent")
	version    = desc("version", "Training steps of the agent's weights.", "agent")
	epoch      = desc("epoch", "Fencing number of the agent's place, which rises with each new worker and with each new round.", "agent")
	rollouts   = desc("rollouts_in_flight", "Conversations that the agent has in flight.", "agent")
	phaseInfo  = desc("phase_info", "1 for the current phase of the agent.", "agent", "phase")
	phaseDone  = desc("phase_done", "Completed units of the phase.", "agent")
	phaseTotal = desc("phase_total", "All units of the phase; absent if the number is not known.", "agent")
	storeUp    = desc("store_up", "1 when the store answers.")
	roundTrip  = desc("store_round_trip_seconds", "Round trip of a request to the store, measured for this answer.")
	savedStep  = desc("checkpoint_step", "Training steps of the newest complete checkpoint.")
	savedSince = desc("checkpoint_age_seconds", "Time since the newest complete checkpoint was written.")
)

// Describe lists no metrics in advance, because the metrics depend on the run.
func (*processState) Describe(chan<- *prometheus.Desc) {}

// Collect sends all current values.
func (s *processState) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	s.collectWorkers(gauge)
	s.mu.Lock()
	phases := maps.Clone(s.phases)
	s.mu.Unlock()
	for agent, p := range phases {
		gauge(phaseInfo, 1, agent, string(p.Activity))
		gauge(phaseDone, float64(p.Done), agent)
		if p.Total > 0 {
			gauge(phaseTotal, float64(p.Total), agent)
		}
	}
	s.collectRecords(gauge)
	if s.newest == nil {
		return
	}
	if step, written, ok := s.newest(); ok {
		gauge(savedStep, float64(step))
		gauge(savedSince, time.Since(written).Seconds())
	}
}

func (s *processState) collectWorkers(gauge func(*prometheus.Desc, float64, ...string)) {
	workers := s.placed()
	for _, agent := range s.agents {
		w, ok := workers[agent]
		if !ok {
			gauge(ready, 0, agent)
			continue
		}
		gauge(ready, 1, agent)
		gauge(version, float64(w.Version()), agent)
		gauge(epoch, float64(w.Epoch()), agent)
		gauge(rollouts, float64(w.Rollouts()), agent)
	}
	for _, w := range workers { // one worker is enough: all use the same store
		took, err := ping(context.Background(), w)
		if err != nil {
			gauge(storeUp, 0)
		} else {
			gauge(storeUp, 1)
			gauge(roundTrip, took.Seconds())
		}
		break
	}
}

// collectRecords sends each value of the newest records, as mgrpo_KIND_NAME.
func (s *processState) collectRecords(gauge func(*prometheus.Desc, float64, ...string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for agent, kinds := range s.records {
		for kind, r := range kinds {
			gauge(desc(kind+"_number", "Number of the newest record of kind "+kind+".", "agent"), float64(r.Step), agent)
			for name, v := range r.Values {
				gauge(desc(kind+"_"+name, help(name), "agent"), v, agent)
			}
			for _, name := range metrics.ByTool {
				for tool, n := range r.Counts[name] {
					gauge(desc(kind+"_"+name, help(name), "agent", "tool"), float64(n), agent, strings.ToValidUTF8(tool, "\uFFFD"))
				}
			}
		}
	}
}

// help returns the description of a value in docs/metrics.md.
func help(name string) string {
	meaning, unit := metrics.Explain(name)
	if unit == "" {
		return meaning
	}
	return meaning + " (" + unit + ")"
}
