package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mgrpo/mgrpo/bench/chaos/check"
)

const redis = "redis"

// nextKill is the next random kill.
type nextKill struct {
	target string    // agent, or redis; "": no kill is scheduled
	from   time.Time // earliest time
	phase  string    // preferred phase of the step; "": any
	calm   bool      // only once all agents have started
}

// killsDue returns the number of kills that are due after `progress` steps. It spreads the kills over the run.
func (c *chaos) killsDue(progress int) int {
	const spare = 10 // steps at the end of the run without further kills
	return min(c.team.options.kills, c.team.options.kills*(progress+1)/max(c.team.steps-spare, 1))
}

// overdueKills returns the number of overdue kills.
func (c *chaos) overdueKills() int { return c.killsDue(c.watchdog.progress) - len(c.kills) }

// hurry and urgent report that many kills are overdue. Then the time between two kills becomes shorter (hurry) or zero (urgent), so that
// all kills are made before the run ends.
func (c *chaos) hurry() bool       { return 2*c.overdueKills() > c.overdueLimit() }
func (c *chaos) urgent() bool      { return c.overdueKills() > c.overdueLimit() }
func (c *chaos) overdueLimit() int { return max(4, min(10, c.team.options.kills/30)) }

// enough reports whether all kills are made and cover as many phases of every target as the check requires. The phases do not matter if
// all kills are at one failpoint.
func (c *chaos) enough() bool {
	o := c.team.options
	return len(c.kills) >= o.kills && (o.point != "" || o.kills == 0 || !slices.ContainsFunc(c.targets(), c.kills.uncovered))
}

// killWhenDue schedules the next random kill, and makes it when it is due.
func (c *chaos) killWhenDue() error {
	if c.team.options.point != "" || c.paused || c.enough() {
		return nil
	}
	a := &c.next
	if a.target == "" {
		due := len(c.kills) < c.killsDue(c.watchdog.progress) || len(c.kills) >= c.team.options.kills // more kills, to cover phases
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
		a.calm, a.from = false, time.Now().Add(c.randomDuration(within))
	}
	if time.Since(a.from) < 0 || !c.inPhase(a) {
		return nil
	}
	return c.killOrSuspend()
}

// inPhase reports whether the target is in the right phase for a kill. While the check requires more phases of the target, this is any
// phase in which it was never killed. Afterwards it is the scheduled phase, or any phase after some time.
func (c *chaos) inPhase(a *nextKill) bool {
	now := c.phaseNow(a.target)
	if c.kills.uncovered(a.target) {
		return slices.Contains(c.kills.missedPhases(a.target), now)
	}
	return a.phase == "" || a.phase == now || c.hurry() || time.Since(a.from) > 4*c.step
}

// schedule chooses the next target and phase: a target with too few phases, or else with the fewest kills, and mostly the
// phase in which it was killed least.
func (c *chaos) schedule() {
	targets := c.targets()
	c.rng.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	if short := slices.DeleteFunc(slices.Clone(targets), func(t string) bool { return !c.kills.uncovered(t) }); len(short) > 0 {
		targets = short
	}
	a := nextKill{from: time.Now(), calm: true}
	a.target = slices.MinFunc(targets, func(x, y string) int { return cmp.Compare(c.kills.times(x, ""), c.kills.times(y, "")) })
	switch {
	case a.target == redis || c.rng.IntN(3) == 0:
		a.phase = slices.MinFunc(check.Phases, func(x, y string) int { return cmp.Compare(c.kills.times(a.target, x), c.kills.times(a.target, y)) })
	case !c.urgent() && !c.kills.uncovered(a.target) && c.rng.IntN(2) == 0: // hits workers that are starting, too
		a.calm, a.from = false, time.Now().Add(c.randomDuration(2*lease))
	}
	c.next = a
}

// targets returns the agents, Redis and, if the planner has several devices, the process of the last device.
func (c *chaos) targets() []string {
	all := append(slices.Clone(c.team.names), redis)
	if c.team.options.ranks > 1 {
		all = append(all, fmt.Sprintf("%s/%d", c.team.names[0], c.team.options.ranks-1))
	}
	return all
}

// times counts the kills of a target, in one phase or in all.
func (all kills) times(target, phase string) (n int) {
	for _, k := range all {
		if k.Target == target && (phase == "" || k.Phase == phase) {
			n++
		}
	}
	return n
}

// uncovered reports whether a target was killed in fewer phases than bench/chaos/check requires.
func (all kills) uncovered(target string) bool {
	return len(check.Phases)-len(all.missedPhases(target)) < check.MinimumPhases
}

// missedPhases returns the phases in which a target was never killed.
func (all kills) missedPhases(target string) []string {
	return slices.DeleteFunc(slices.Clone(check.Phases), func(phase string) bool { return all.times(target, phase) > 0 })
}

// atWork reports whether every agent has a worker that has finished joining.
func (c *chaos) atWork() bool {
	for _, agent := range c.team.names {
		p := c.newestProcess(agent)
		if p == nil {
			return false
		}
		point, _ := lastPoint(p.log)
		if !slices.Contains(check.Phases, phaseOf(point)) {
			return false
		}
	}
	return true
}

// phaseNow returns the current phase of an agent or its follower. For Redis it returns the phase of the last failpoint of any agent.
func (c *chaos) phaseNow(target string) string {
	target, _, _ = strings.Cut(target, "/")
	if p := c.newestProcess(target); p != nil {
		point, _ := lastPoint(p.log)
		return phaseOf(point)
	}
	return phaseOf(c.newestPoint())
}

// newestPoint returns the last failpoint of any agent.
func (c *chaos) newestPoint() (name string) {
	var newest int64
	for _, p := range c.live {
		if point, at := lastPoint(p.log); at > newest {
			name, newest = point, at
		}
	}
	return name
}

// killOrSuspend kills the target. One target in ten is suspended for longer than its lease
// instead. One in ten is killed together with Redis.
func (c *chaos) killOrSuspend() error {
	target, dice := c.next.target, c.rng.IntN(10)
	if agent, rank, ok := strings.Cut(target, "/"); ok {
		return c.killFollower(agent, rank, dice == 0)
	}
	if dice == 0 && !c.hurry() {
		return c.pause(target)
	}
	c.next = nextKill{}
	if target == redis || dice == 1 {
		if err := c.killRedis(); err != nil || target == redis {
			return err
		}
	}
	if p := c.newestProcess(target); p != nil {
		p.hit = true
		return alive(p.cmd.Process.Kill())
	}
	return nil
}

// killFollower kills the process of an agent's further device, or stops it for ever. Its worker must notice both.
func (c *chaos) killFollower(agent, rank string, stops bool) error {
	c.next = nextKill{}
	p := c.newestProcess(agent)
	if p == nil {
		return nil
	}
	pid, err := follower(p.cmd.Process.Pid, rank)
	if pid == 0 || err != nil { // the worker is ending, or is replacing it
		return err
	}
	signal := syscall.SIGKILL
	if stops {
		signal = syscall.SIGSTOP
		c.pauses++
	}
	if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("%s/%s: %w", agent, rank, err)
	}
	point, _ := lastPoint(p.log)
	return c.killed(check.Kill{Target: agent + "/" + rank, Point: point})
}

// follower returns the process that a worker has started for a rank, or 0 if there is no such process.
func follower(worker int, rank string) (int, error) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, path := range lines {
		line, _ := os.ReadFile(path) // a process may have ended meanwhile
		if args := strings.Split(string(line), "\x00"); len(args) < 4 || args[1] != "follower" || args[3] != "rank="+rank {
			continue
		}
		stat, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "stat"))
		_, rest, _ := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == strconv.Itoa(worker) {
			return strconv.Atoi(filepath.Base(filepath.Dir(path)))
		}
	}
	return 0, nil
}

// killRedis kills the server and starts it again after a while.
func (c *chaos) killRedis() error {
	point := c.newestPoint()
	c.redis.stop()
	c.paused = true
	c.after(c.randomDuration(3*lease/2), func() error {
		c.paused = false
		return c.redis.start()
	})
	return c.killed(check.Kill{Target: redis, Point: point})
}

// pause suspends a process for longer than its lease. Every other time it starts another worker in its place; the
// suspended worker is then fenced when it continues.
func (c *chaos) pause(target string) error {
	process, p := c.redis.cmd.Process, c.newestProcess(target)
	if target != redis {
		if p == nil || p.sleep || p.rival {
			c.next = nextKill{}
			return nil
		}
		process = p.cmd.Process
	}
	c.pauses++
	if err := alive(process.Signal(syscall.SIGSTOP)); err != nil {
		return fmt.Errorf("%s: %w", target, err)
	}
	replaced := target != redis && c.rng.IntN(2) == 0
	c.next, c.paused = nextKill{}, !replaced
	c.after(5*lease/4+c.randomDuration(2*lease), func() error {
		if !replaced {
			c.paused = false
		}
		return alive(process.Signal(syscall.SIGCONT))
	})
	if replaced {
		return c.startRival(p)
	}
	return nil
}

// replaceSleepers finds workers that have suspended themselves at a failpoint. It starts another worker in their place, and
// resumes them later.
func (c *chaos) replaceSleepers() error {
	for _, p := range c.live {
		if !p.sleep || !stopped(p.cmd.Process.Pid) {
			continue
		}
		p.sleep = false
		c.pauses++
		c.after(3*lease+c.randomDuration(2*lease), func() error { return alive(p.cmd.Process.Signal(syscall.SIGCONT)) })
		return c.startRival(p)
	}
	return nil
}

// stopped reports whether SIGSTOP has suspended a process.
func stopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return err == nil && strings.HasPrefix(state, "T")
}

// arm chooses the failpoint at which a new worker kills itself or, one worker in eight, suspends itself. It also chooses the number of the
// passage. at is "" for no failpoint. It prefers phases in which the agent was never killed, and then failpoints with the fewest
// deaths of the agent's workers. Only failpoints that the agent's workers have passed are possible.
func (c *chaos) arm(agent string) (at string, sleep bool) {
	if len(c.kills) >= c.team.options.kills {
		return "", false
	}
	if c.team.options.point != "" {
		return fmt.Sprintf("%s:%d", c.team.options.point, 1+c.rng.IntN(5)), false
	}
	const ahead = 8 // steps within which the worker will have killed itself
	if len(c.kills)+c.armed() >= c.killsDue(c.watchdog.progress+ahead) || c.rng.IntN(4) == 0 || len(c.counts[agent]) == 0 {
		return "", false
	}
	died := map[string]int{}
	for _, k := range c.kills {
		if k.Target == agent && k.Exact {
			died[k.Point]++
		}
	}
	points := slices.Sorted(maps.Keys(c.counts[agent]))
	if c.kills.uncovered(agent) {
		missed := c.kills.missedPhases(agent)
		if some := slices.DeleteFunc(slices.Clone(points), func(p string) bool { return !slices.Contains(missed, phaseOf(p)) }); len(some) > 0 {
			points = some
		}
	}
	c.rng.Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
	point := slices.MinFunc(points, func(x, y string) int { return cmp.Compare(died[x], died[y]) })
	perStep := c.counts[agent][point] / max(c.watchdog.progress, 1)
	at = fmt.Sprintf("%s:%d", point, 1+c.rng.IntN(1+min(2*perStep, 30)))
	if sleep = c.rng.IntN(8) == 0; sleep {
		at += ":stop"
	}
	return at, sleep
}

// armed counts the processes that will kill themselves at a failpoint.
func (c *chaos) armed() (n int) {
	for _, p := range c.live {
		if p.armed != "" && !p.sleep {
			n++
		}
	}
	return n
}

// alive ignores the error that a process has ended already.
func alive(err error) error {
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// phaseOf returns the phase of a step that contains a failpoint.
func phaseOf(point string) string {
	if point == "" {
		return "start" // the process has not passed a failpoint yet
	}
	phase, _, _ := strings.Cut(point, ".")
	return phase
}

// lastPoint returns the last failpoint in a process's log, and its time. The name is "" before the first failpoint.
func lastPoint(log string) (name string, at int64) {
	data, err := os.ReadFile(log)
	if err != nil {
		return "", 0
	}
	data = bytes.TrimRight(data, "\n")
	last := string(data[bytes.LastIndexByte(data, '\n')+1:])
	time, name, _ := strings.Cut(last, " ")
	at, _ = strconv.ParseInt(time, 10, 64)
	return name, at
}

// countPoints adds the passages in a log to counts.
func countPoints(log string, counts map[string]int) {
	data, err := os.ReadFile(log)
	if err != nil {
		return
	}
	for line := range strings.Lines(string(data)) {
		if _, name, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			counts[name]++
		}
	}
}
