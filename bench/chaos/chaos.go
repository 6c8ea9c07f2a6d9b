package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/mgrpo/mgrpo/bench/chaos/check"
)

// process is the process of a worker.
type process struct {
	agent string
	cmd   *exec.Cmd
	log   string // file with the failpoints that it passed
	armed string // failpoint at which it kills or suspends itself, and the number of the passage; "": none
	sleep bool   // it suspends itself at armed
	hit   bool   // chaos killed it at a random moment
	rival bool   // another worker of its agent was started, and the store refuses one of the two
}

// exit is the end of a process.
type exit struct {
	p   *process
	err error
}

// kills are the kills of a run, in their order.
type kills []check.Kill

// chaos supervises the killed run: it kills workers and Redis as often as the options ask for, and starts them again. Only one
// goroutine uses it.
type chaos struct {
	team  *team
	redis *server
	step  time.Duration // duration of a step of the uninterrupted run
	rng   *rand.Rand

	began    time.Time
	live     []*process
	starting map[string]bool
	finished map[string]bool
	exits    chan exit
	later    []action
	starts   int                       // number of processes until now
	counts   map[string]map[string]int // how often the ended processes of an agent passed each failpoint

	kills  kills
	pauses int
	next   nextKill
	paused bool // Redis is down, or a process is suspended

	watchdog watchdog
}

// watchdog holds the data by which chaos finds that nothing happens any more.
type watchdog struct {
	progress     int       // number of steps at lastRead
	lastRead     time.Time // when progress was read
	lastActivity time.Time // time of the last step, kill or start
}

// action is a function with the time of its call.
type action struct {
	at time.Time
	do func() error
}

const (
	tick         = 2 * time.Millisecond
	stallTimeout = 2 * time.Minute // without a step, a kill or a start
)

// run supervises until every worker has ended by itself and all kills have been made in the required phases. If the team
// makes its last step before that, it gets more steps.
func (c *chaos) run(ctx context.Context) error {
	c.began, c.watchdog.lastActivity = time.Now(), time.Now()
	if err := c.startAll(); err != nil {
		return err
	}
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for !c.runFinished() || !c.enough() {
		var err error
		if c.runFinished() {
			err = c.addSteps()
		}
		select {
		case e := <-c.exits:
			err = errors.Join(err, c.ended(e))
		case <-ticks.C:
			err = errors.Join(err, c.runDue(), c.watch())
		case <-ctx.Done():
			err = fmt.Errorf("at step %d of %d, after %d kills: %w", c.watchdog.progress, c.team.steps, len(c.kills), context.Cause(ctx))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// startAll starts a worker of every agent.
func (c *chaos) startAll() error {
	for _, agent := range c.team.names {
		if err := c.start(agent); err != nil {
			return err
		}
	}
	return nil
}

// exitResumable is the exit status of a stopped worker that --resume can continue.
const exitResumable = 75

// runFinished reports whether every agent has made its last step, no process runs or is suspended, and Redis is up.
func (c *chaos) runFinished() bool {
	return len(c.finished) == len(c.team.names) && len(c.live) == 0 && len(c.later) == 0
}

// addSteps gives the team more steps, and starts all workers again.
func (c *chaos) addSteps() error {
	logf("%d kills by step %d: %d steps more", len(c.kills), c.team.steps, moreSteps)
	c.team.steps += moreSteps
	clear(c.finished)
	return c.startAll()
}

// watch makes the kills that are due now, and returns an error if nothing happens any more.
func (c *chaos) watch() error {
	if time.Since(c.watchdog.lastRead) > 20*tick {
		c.watchdog.lastRead = time.Now()
		if p := c.team.progress(); p != c.watchdog.progress {
			c.watchdog.progress, c.watchdog.lastActivity = p, time.Now()
		}
	}
	if time.Since(c.watchdog.lastActivity) > stallTimeout {
		return fmt.Errorf("nothing has happened for %v: step %d, %d kills", stallTimeout, c.watchdog.progress, len(c.kills))
	}
	return errors.Join(c.replaceSleepers(), c.killWhenDue())
}

// start starts a worker of an agent. It may be armed with a failpoint.
func (c *chaos) start(agent string) error {
	c.starts++
	p := &process{agent: agent, log: fmt.Sprintf("%s/%s-%d", c.team.points(), agent, c.starts)}
	p.armed, p.sleep = c.arm(agent)
	var err error
	if p.cmd, err = c.team.worker(c.redis, agent, p.log, p.armed); err != nil {
		return err
	}
	c.live = append(c.live, p)
	c.watchdog.lastActivity = time.Now()
	go func() { c.exits <- exit{p, p.cmd.Wait()} }()
	return nil
}

// startSoon starts a worker of an agent without a worker after a short random time. Further calls before that have no
// effect.
func (c *chaos) startSoon(agent string) {
	if c.starting[agent] || c.finished[agent] {
		return
	}
	c.starting[agent] = true
	c.after(c.randomDuration(400*time.Millisecond), func() error {
		c.starting[agent] = false
		return c.start(agent)
	})
}

// startRival starts a second worker of an agent.
func (c *chaos) startRival(p *process) error {
	err := c.start(p.agent)
	p.rival, c.newestProcess(p.agent).rival = true, true
	return err
}

// ended handles the end of a worker: it counts a kill, and starts a new worker if the agent has none.
func (c *chaos) ended(e exit) error {
	agent := e.p.agent
	c.live = slices.DeleteFunc(c.live, func(p *process) bool { return p == e.p })
	point, _ := lastPoint(e.p.log)
	if c.counts[agent] == nil {
		c.counts[agent] = map[string]int{}
	}
	countPoints(e.p.log, c.counts[agent])
	os.Remove(e.p.log)
	another := c.newestProcess(agent) != nil
	switch {
	case e.err == nil:
		c.finished[agent] = true
		return nil
	case e.p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
		if err := c.killed(check.Kill{Target: agent, Point: point, Exact: !e.p.hit}); err != nil {
			return err
		}
		if !another {
			c.startSoon(agent)
		}
		return nil
	case c.team.options.ranks > 1 && e.p.cmd.ProcessState.ExitCode() == exitResumable: // a follower was lost twice at one version
		c.startSoon(agent)
		return nil
	case e.p.rival || c.finished[agent]: // the store refused it, or the run had ended already
		if !another {
			c.startSoon(agent)
		}
		return nil
	}
	return fmt.Errorf("the worker of %s ended with %w", agent, e.err)
}

// killed counts a kill, and writes it to kills.jsonl, which the check reads.
func (c *chaos) killed(k check.Kill) error {
	k.Phase, k.Progress, k.Seconds = phaseOf(k.Point), c.watchdog.progress, time.Since(c.began).Seconds()
	c.kills = append(c.kills, k)
	c.watchdog.lastActivity = time.Now()
	if n := len(c.kills); n%10 == 0 {
		logf("%d kills, step %d of %d, %.0f s", n, c.watchdog.progress, c.team.steps, k.Seconds)
	}
	f, err := os.OpenFile(c.team.path("kills.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	line, _ := json.Marshal(k)
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// newestProcess returns the newest process of an agent, or nil if it has none.
func (c *chaos) newestProcess(agent string) *process {
	for _, p := range slices.Backward(c.live) {
		if p.agent == agent {
			return p
		}
	}
	return nil
}

// after calls a function after d.
func (c *chaos) after(d time.Duration, do func() error) {
	c.later = append(c.later, action{time.Now().Add(d), do})
}

// runDue calls the functions that are due.
func (c *chaos) runDue() error {
	now, waiting := time.Now(), c.later
	c.later = nil
	var errs []error
	for _, a := range waiting {
		if a.at.After(now) {
			c.later = append(c.later, a)
			continue
		}
		errs = append(errs, a.do())
	}
	return errors.Join(errs...)
}

// randomDuration returns a random duration from 0 to d.
func (c *chaos) randomDuration(d time.Duration) time.Duration {
	return time.Duration(c.rng.Int64N(int64(d) + 1))
}

// stopAll kills the remaining workers.
func (c *chaos) stopAll() {
	for _, p := range c.live {
		p.cmd.Process.Kill()
	}
	for range c.live {
		<-c.exits
	}
}
