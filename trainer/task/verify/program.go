package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// ProgramSettings name a program that scores answers. docs/verifiers.md describes what it reads and writes.
type ProgramSettings struct {
	Command []string      // program and arguments; it is not given to a shell
	Dir     string        // folder in which it runs; "": the current one
	Timeout time.Duration // of one score. 0: one minute
}

const (
	maxProgramRequest = 16 << 20 // bytes of a line to the program
	maxProgramReply   = 64 << 10 // bytes of a line from it
	programRestart    = time.Second
	programSends      = 2 // how often a case is given to a program that dies over it
	programDeaths     = 5 // how often a program that answers nothing is started
)

// programRequest is a line to the program.
type programRequest struct {
	ID           int64           `json:"id"`
	Query        string          `json:"query"`
	Rollout      int             `json:"rollout"`
	Agent        string          `json:"agent"`
	Invocation   int             `json:"invocation"`
	Subtask      *string         `json:"subtask"` // null: the main agent
	Question     string          `json:"question"`
	Answer       string          `json:"answer"`
	Accepted     []string        `json:"accepted"`
	Choices      []string        `json:"choices"` // null: the question has none
	Row          json.RawMessage `json:"row"`     // null: the task has no rows
	Conversation []task.Message  `json:"conversation"`
}

// programReply is a line of the program.
type programReply struct {
	ID    *int64   `json:"id"`
	Score *float64 `json:"score"`
	Error string   `json:"error"`
}

// programVerifier keeps one process and any number of cases in flight, matched by their ids. A process that dies is
// started again after a pause. Any of the cases in flight may have killed it, so the next one gets them one by one, and
// a case over which a second process dies has no score. A program that dies several times without an answer is given up.
type programVerifier struct {
	settings ProgramSettings
	name     string        // for errors
	restart  time.Duration // pause before a process is started again

	mu      sync.Mutex
	next    int64
	waiting map[int64]*programCase
	process *process // nil: none is running
	running bool     // a goroutine keeps a process for what waits
	deaths  int      // since the last answer
	careful bool     // a process died over one of those that wait: they are sent one by one
	broken  error    // set once: every later case gets it
	closed  chan struct{}
	kept    sync.WaitGroup
}

// programCase is a case in flight.
type programCase struct {
	line   []byte
	sent   bool               // to the process that is running
	deaths int                // processes that died before they answered it
	done   chan programResult // holds one
}

type programResult struct {
	score float64
	err   error
}

var errProgramClosed = errors.New("the run is over")

func newProgram(s ProgramSettings) (Verifier, error) {
	if len(s.Command) == 0 || s.Command[0] == "" {
		return nil, errors.New("verifier: program command: missing")
	}
	look := exec.Command(s.Command[0])
	look.Dir = s.Dir
	if look.Err != nil {
		return nil, fmt.Errorf("verifier: program command: %w", look.Err)
	}
	if s.Timeout <= 0 {
		s.Timeout = time.Minute
	}
	return &programVerifier{settings: s, name: strings.Join(s.Command, " "), restart: programRestart,
		waiting: map[int64]*programCase{}, closed: make(chan struct{})}, nil
}

// Score gives a case to the program, which is started for the first one, and waits for its line.
func (v *programVerifier) Score(ctx context.Context, c Case) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, v.settings.Timeout)
	defer cancel()
	id, asked, err := v.enlist(c)
	if err != nil {
		return 0, fmt.Errorf("verifier: program %s: %w", v.name, err)
	}
	select {
	case r := <-asked.done:
		if r.err != nil {
			return 0, fmt.Errorf("verifier: program %s: %w", v.name, r.err)
		}
		return r.score, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("verifier: program %s: no answer: %w%s", v.name, ctx.Err(), v.abandon(id))
	}
}

// enlist gives a case its id and sends it, or leaves that to whoever starts the process.
func (v *programVerifier) enlist(c Case) (int64, *programCase, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.broken != nil {
		return 0, nil, v.broken
	}
	v.next++
	request := programRequest{ID: v.next, Query: c.Query.ID, Rollout: c.Attempt.Rollout, Agent: c.Attempt.Agent, Invocation: c.Attempt.Invocation,
		Question: c.Query.Text, Answer: c.Attempt.Answer, Accepted: c.Accepted(), Choices: c.Choices, Row: c.Query.Columns, Conversation: c.Attempt.Conversation}
	if c.Attempt.Subtask != "" {
		request.Subtask = &c.Attempt.Subtask
	}
	line, err := json.Marshal(request)
	if err != nil {
		return 0, nil, err
	}
	if len(line) > maxProgramRequest {
		return 0, nil, fmt.Errorf("a case of %d bytes; at most %d are sent", len(line), maxProgramRequest)
	}
	asked := &programCase{line: append(line, '\n'), done: make(chan programResult, 1)}
	v.waiting[v.next] = asked
	if v.process != nil {
		v.sendWaiting()
	} else if !v.running {
		v.running = true
		v.kept.Go(v.keep)
	}
	return v.next, asked, nil
}

// sendWaiting gives the process what waits, in the order of the ids: all of it, or the first alone. v.mu is held.
func (v *programVerifier) sendWaiting() {
	for _, id := range slices.Sorted(maps.Keys(v.waiting)) {
		asked := v.waiting[id]
		if !asked.sent {
			asked.sent = true
			v.process.send(asked.line)
		}
		if v.careful {
			return
		}
	}
}

// proceed sends what was held back for a case that waits no longer. v.mu is held.
func (v *programVerifier) proceed() {
	v.careful = false
	for _, asked := range v.waiting {
		v.careful = v.careful || asked.deaths > 0
	}
	if v.process != nil {
		v.sendWaiting()
	}
}

// abandon forgets a case, whose line may still come, and tells what the program has said meanwhile.
func (v *programVerifier) abandon(id int64) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.waiting, id)
	v.proceed()
	if v.process == nil {
		return ""
	}
	return v.process.said()
}

// keep runs processes as long as something waits for an answer of theirs.
func (v *programVerifier) keep() {
	for v.runOnce() {
		select {
		case <-time.After(v.restart):
		case <-v.closed:
			v.mu.Lock()
			defer v.mu.Unlock()
			v.fail(errProgramClosed)
			return
		}
	}
}

// runOnce starts a process, gives it what waits, and serves it until it ends. It returns whether to start another.
func (v *programVerifier) runOnce() (again bool) {
	p, err := startProcess(v.settings.Command, v.settings.Dir)
	if err != nil {
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.fail(err)
	}
	v.mu.Lock()
	v.process = p
	v.proceed()
	v.mu.Unlock()
	stop := make(chan struct{})
	go func() {
		select {
		case <-v.closed:
			p.end()
		case <-stop:
		}
	}()
	err = p.lines(maxProgramReply, v.answer)
	close(stop)
	return v.ended(p.reason(err))
}

// ended notes that the process has ended, and why. It returns whether to start another.
func (v *programVerifier) ended(err error) (again bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.process = nil
	v.deaths++
	for id, asked := range v.waiting {
		if asked.sent {
			asked.sent = false
			asked.deaths++
		}
		if asked.deaths >= programSends {
			v.settle(id, programResult{err: err})
		}
	}
	switch {
	case v.isClosed():
		return v.fail(errProgramClosed)
	case v.deaths >= programDeaths:
		return v.fail(fmt.Errorf("it ended %d times without an answer, last: %w", v.deaths, err))
	}
	v.running = len(v.waiting) > 0
	return v.running
}

// fail gives the program up: what waits and what will be asked gets the error. It returns false.
func (v *programVerifier) fail(err error) bool {
	v.broken, v.running = err, false
	for id := range v.waiting {
		v.settle(id, programResult{err: err})
	}
	return false
}

// settle answers a case; v.mu is held.
func (v *programVerifier) settle(id int64, r programResult) {
	v.waiting[id].done <- r
	delete(v.waiting, id)
}

// answer takes a line of the program. An error means that the process cannot be understood.
func (v *programVerifier) answer(line []byte) error {
	var r programReply
	if err := json.Unmarshal(line, &r); err != nil || r.ID == nil || (r.Score == nil) == (r.Error == "") {
		return fmt.Errorf(`it wrote %s; want {"id": N, "score": X} or {"id": N, "error": TEXT} on standard output, anything else on standard error`, quoted(string(line)))
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if *r.ID < 1 || *r.ID > v.next {
		return fmt.Errorf("it answered case %d, of which it was not asked", *r.ID)
	}
	v.deaths = 0
	if v.waiting[*r.ID] == nil {
		return nil // it came too late
	}
	switch {
	case r.Error != "":
		v.settle(*r.ID, programResult{err: fmt.Errorf("it reports: %s", quoted(r.Error))})
	case !(*r.Score >= 0 && *r.Score <= 1) || math.IsNaN(*r.Score):
		v.settle(*r.ID, programResult{err: fmt.Errorf("the score %g is outside 0 to 1", *r.Score)})
	default:
		v.settle(*r.ID, programResult{score: *r.Score})
	}
	v.proceed()
	return nil
}

func (v *programVerifier) isClosed() bool {
	select {
	case <-v.closed:
		return true
	default:
		return false
	}
}

// Close ends the process and returns when it is gone. Cases in flight and later ones get an error.
func (v *programVerifier) Close() error {
	v.mu.Lock()
	if !v.isClosed() {
		close(v.closed)
	}
	v.broken = errProgramClosed
	v.mu.Unlock()
	v.kept.Wait()
	return nil
}
