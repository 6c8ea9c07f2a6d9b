package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

const redis = "redis"

// aim is the next kill at random: whom, and when.
type aim struct {
	target string    // agent, or redis; "": none is planned
	from   time.Time // not before
	phase  string    // of the step, if it comes up in time; "": whichever
	calm   bool      // not before everybody is at work
}

// debt is how many kills are due when so many steps are made, so that they are spread over the run.
func (c *chaos) debt(progress int) int {
	const spare = 10 // steps at the end, in which the last kills take effect
	return min(c.o.kills, c.o.kills*(progress+1)/max(c.t.steps-spare, 1))
}

// behind is how many kills are overdue.
func (c *chaos) behind() int { return c.debt(c.progress) - len(c.kills) }

// hurry and urgent say that many are, and the team gets less time between them, or none, lest the run end before they
// are made.
func (c *chaos) hurry() bool  { return 2*c.behind() > c.most() }
func (c *chaos) urgent() bool { return c.behind() > c.most() }
func (c *chaos) most() int    { return max(4, min(10, c.o.kills/30)) }

// enough says whether all kills are made and, unless they are all at one failpoint, everybody's cover what the check
// demands.
func (c *chaos) enough() bool {
	switch {
	case c.o.point != "" && c.o.asleep:
		return c.pauses >= c.o.kills
	case c.o.point != "" || c.o.kills == 0:
		return len(c.kills) >= c.o.kills
	}
	return len(c.kills) >= c.o.kills && !slices.ContainsFunc(c.targets(), c.uncovered)
}

// aimAndShoot plans the next kill at random and, when its time has come, does it.
func (c *chaos) aimAndShoot() error {
	if c.o.point != "" || c.paused || c.enough() {
		return nil
	}
	a := &c.aim
	if a.target == "" {
		due := len(c.kills) < c.debt(c.progress) || len(c.kills) >= c.o.kills // more than were asked for, to cover
		if due && len(c.live) > 0 {
			c.schedule()
		}
		return nil
	}
	if a.calm && !c.atWork() {
		return nil
	}
	if a.calm {
		within := 3 * c.step / 2
		switch {
		case c.urgent():
			within = 0
		case c.hurry():
			within = c.step / 2
		}
		a.calm, a.from = false, time.Now().Add(c.upTo(within))
	}
	if time.Since(a.from) < 0 || !c.inPhase(a) {
		return nil
	}
	return c.shoot()
}

// inPhase says whether the target is where it is to be hit: in a phase in which it never was, as long as the check
// demands more of those; then in the one that was planned, for which nobody waits long.
func (c *chaos) inPhase(a *aim) bool {
	now := c.phaseNow(a.target)
	if c.uncovered(a.target) {
		return slices.Contains(c.unhit(a.target), now)
	}
	return a.phase == "" || a.phase == now || c.hurry() || time.Since(a.from) > 4*c.step
}

// schedule takes who was killed in too few phases of a step, or least, and mostly the phase in which it was killed least.
func (c *chaos) schedule() {
	targets := c.targets()
	c.rng.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	if short := slices.DeleteFunc(slices.Clone(targets), func(t string) bool { return !c.uncovered(t) }); len(short) > 0 {
		targets = short
	}
	a := aim{from: time.Now(), calm: true}
	a.target = slices.MinFunc(targets, func(x, y string) int { return cmp.Compare(c.timesHit(x, ""), c.timesHit(y, "")) })
	switch {
	case a.target == redis || c.rng.IntN(3) == 0:
		a.phase = slices.MinFunc(phases, func(x, y string) int { return cmp.Compare(c.timesHit(a.target, x), c.timesHit(a.target, y)) })
	case !c.urgent() && !c.uncovered(a.target) && c.rng.IntN(2) == 0: // while it starts, or the others do
		a.calm, a.from = false, time.Now().Add(c.upTo(2*lease))
	}
	c.aim = a
}

// targets are all that can be killed.
func (c *chaos) targets() []string { return append(slices.Clone(c.t.names), redis) }

// phases of a step.
var phases = []string{"rollout", "agree", "learn", "commit", "checkpoint"}

// timesHit counts the kills of a target, in one phase or in all.
func (c *chaos) timesHit(target, phase string) (n int) {
	for _, k := range c.kills {
		if k.Target == target && (phase == "" || k.Phase == phase) {
			n++
		}
	}
	return n
}

// uncovered says whether a target was killed in fewer phases than bench/chaos/check demands.
func (c *chaos) uncovered(target string) bool {
	const demanded = 3
	return len(phases)-len(c.unhit(target)) < demanded
}

// unhit are the phases in which a target was never killed.
func (c *chaos) unhit(target string) []string {
	return slices.DeleteFunc(slices.Clone(phases), func(phase string) bool { return c.timesHit(target, phase) > 0 })
}

// atWork says whether every agent has a worker that has come beyond joining.
func (c *chaos) atWork() bool {
	for _, agent := range c.t.names {
		p := c.of(agent)
		if p == nil {
			return false
		}
		point, _ := lastPoint(p.log)
		if !slices.Contains(phases, phaseOf(point)) {
			return false
		}
	}
	return true
}

// phaseNow is the phase in which a target is: its own, or for Redis that of whoever came to one last.
func (c *chaos) phaseNow(target string) string {
	if p := c.of(target); p != nil {
		point, _ := lastPoint(p.log)
		return phaseOf(point)
	}
	return phaseOf(c.newestPoint())
}

// newestPoint is the failpoint that was passed last by anybody.
func (c *chaos) newestPoint() (name string) {
	var newest int64
	for _, p := range c.live {
		if point, at := lastPoint(p.log); at > newest {
			name, newest = point, at
		}
	}
	return name
}

// shoot kills whom it is aimed at. One in ten is put to sleep instead, until others take it for dead, and wakes up
// again; one in ten dies with Redis.
func (c *chaos) shoot() error {
	target, dice := c.aim.target, c.rng.IntN(10)
	if dice == 0 && !c.hurry() {
		return c.pause(target)
	}
	c.aim = aim{}
	if target == redis || dice == 1 {
		if err := c.killRedis(); err != nil || target == redis {
			return err
		}
	}
	if p := c.of(target); p != nil {
		p.hit = true
		return alive(p.cmd.Process.Kill())
	}
	return nil
}

// killRedis kills the server and starts it again after a while.
func (c *chaos) killRedis() error {
	point := c.newestPoint()
	c.r.stop()
	c.paused = true
	c.in(c.upTo(3*lease/2), func() error {
		c.paused = false
		return c.r.start()
	})
	return c.killed(kill{Target: redis, Point: point})
}

// pause stops a process for longer than its lease. Every other time another worker is started in its place, and
// the one that wakes up finds that it is fenced.
func (c *chaos) pause(target string) error {
	process, p := c.r.cmd.Process, c.of(target)
	if target != redis {
		if p == nil || p.sleep || p.rival {
			c.aim = aim{}
			return nil
		}
		process = p.cmd.Process
	}
	c.pauses++
	if err := alive(process.Signal(syscall.SIGSTOP)); err != nil {
		return fmt.Errorf("%s: %w", target, err)
	}
	replaced := target != redis && c.rng.IntN(2) == 0
	c.aim, c.paused = aim{}, !replaced
	c.in(5*lease/4+c.upTo(2*lease), func() error {
		if !replaced {
			c.paused = false
		}
		return alive(process.Signal(syscall.SIGCONT))
	})
	if replaced {
		return c.rival(p)
	}
	return nil
}

// replaceSleepers gives a place that fell asleep at a failpoint to another worker, and wakes the sleeper up when that
// one is at work.
func (c *chaos) replaceSleepers() error {
	for _, p := range c.live {
		if !p.sleep || !stopped(p.cmd.Process.Pid) {
			continue
		}
		p.sleep = false
		c.pauses++
		c.in(3*lease+c.upTo(2*lease), func() error { return alive(p.cmd.Process.Signal(syscall.SIGCONT)) })
		return c.rival(p)
	}
	return nil
}

// stopped says whether a process sleeps because of SIGSTOP.
func stopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return err == nil && strings.HasPrefix(state, "T")
}

// arm chooses the failpoint at which a worker that is about to start will die or, one in eight, fall asleep, and the
// passage of it; "" for none. It is one of those that the agent's workers have passed, and at which fewest have died;
// first in phases in which none has.
func (c *chaos) arm(agent string) (point, kill string, sleep bool) {
	if len(c.kills) >= c.o.kills || c.o.asleep && c.pauses >= c.o.kills {
		return "", "", false
	}
	if c.o.point != "" {
		kill := fmt.Sprintf("%s:%d", c.o.point, 1+c.rng.IntN(5))
		if c.o.asleep {
			kill += ":stop"
		}
		return c.o.point, kill, c.o.asleep
	}
	const ahead = 8 // steps, after which it will have died
	if len(c.kills)+c.armed() >= c.debt(c.progress+ahead) || c.rng.IntN(4) == 0 || len(c.counts[agent]) == 0 {
		return "", "", false
	}
	died := map[string]int{}
	for _, k := range c.kills {
		if k.Target == agent && k.Exact {
			died[k.Point]++
		}
	}
	points := slices.Sorted(maps.Keys(c.counts[agent]))
	if c.uncovered(agent) {
		unhit := c.unhit(agent)
		if some := slices.DeleteFunc(slices.Clone(points), func(p string) bool { return !slices.Contains(unhit, phaseOf(p)) }); len(some) > 0 {
			points = some
		}
	}
	c.rng.Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
	point = slices.MinFunc(points, func(x, y string) int { return cmp.Compare(died[x], died[y]) })
	perStep := c.counts[agent][point] / max(c.progress, 1)
	kill = fmt.Sprintf("%s:%d", point, 1+c.rng.IntN(1+min(2*perStep, 30)))
	if sleep = c.rng.IntN(8) == 0; sleep {
		kill += ":stop"
	}
	return point, kill, sleep
}

// armed counts the processes that will die at a failpoint.
func (c *chaos) armed() (n int) {
	for _, p := range c.live {
		if p.armed != "" && !p.sleep {
			n++
		}
	}
	return n
}

// alive forgives that a process has ended by itself meanwhile.
func alive(err error) error {
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}
