package worker

import "time"

// stopwatch measures the parts of a step for the report. Results do not depend on it.
type stopwatch struct {
	last time.Time
	laps map[string]float64 // seconds
}

func newStopwatch() *stopwatch {
	return &stopwatch{last: time.Now(), laps: map[string]float64{}}
}

// lap adds the time since the last lap, or since resume, to a part.
func (s *stopwatch) lap(name string) {
	now := time.Now()
	s.laps[name] += now.Sub(s.last).Seconds()
	s.last = now
}

// resume begins a lap without adding the time since the last one to any part.
func (s *stopwatch) resume() { s.last = time.Now() }
