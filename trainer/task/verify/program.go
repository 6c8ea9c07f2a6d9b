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

// ProgramOptions configure a program that scores answers. docs/verifiers.md describes its input and output.
type ProgramOptions struct {
	Command []string      // program and arguments; no shell is used
	Dir     string        // working folder of the program; "": the current folder
	Timeout time.Duration // for one score, see programVerifier; 0: one minute
}

const (
	maxProgramRequest = 16 << 20 // largest number of bytes in a line to the program
	maxProgramReply   = 64 << 10 // largest number of bytes in a line from the program
	programRestart    = time.Second
	programSends      = 2 // number of times that a case is sent to a program that crashes on it
	programDeaths     = 5 // number of times that a program is started without answering a case
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
	Choices      []string        `json:"choices"` // null: the question has no choices
	Row          json.RawMessage `json:"row"`     // null: the task has no rows
	Conversation []task.Message  `json:"conversation"`
}

// programReply is a line of the program.
type programReply struct {
	ID    *int64        `json:"id"`
	Score *programScore `json:"score"`
	Error string        `json:"error"`
}

// programScore is a score. Rounding may put it slightly outside 0 to 1, and the result of a comparison in the program is true or false.
type programScore float64

// UnmarshalJSON reads true as 1 and false as 0.
func (s *programScore) UnmarshalJSON(raw []byte) error {
	const rounding = 1e-6 // of sums in float32, too
	var score float64
	switch string(raw) {
	case "true":
		score = 1
	case "false":
	default:
		if err := json.Unmarshal(raw, &score); err != nil {
			return err
		}
	}
	if nearest := min(max(score, 0), 1); math.Abs(score-nearest) < rounding {
		score = nearest
	}
	*s = programScore(score)
	return nil
}

// programVerifier has one process and any number of cases in flight, which it matches to replies by id. After a crash
// it pauses and starts a new process. Any open case may have caused the crash, so the new process gets the open cases
// one at a time. If a second process crashes on a case, the case has no score. After programDeaths crashes without an
// answer in between, programVerifier gives up.
//
// A process that answers no case for the timeout hangs. It is killed, and its cases are sent again as after a crash. If it hangs
// programDeaths times without an answer in between, the open cases have no score. A case also has no score if it is still open when
// the timeout has passed since a later case was answered.
type programVerifier struct {
	opt     ProgramOptions
	name    string        // name of the program in errors
	restart time.Duration // pause before the next start of a process

	mu      sync.Mutex
	next    int64
	waiting map[int64]*programCase
	process *process        // nil: no process is running
	running bool            // a goroutine is running keep
	deaths  int             // number of crashes since the last answer
	hangs   int             // number of times that a process hung since the last answer
	careful bool            // a process crashed on one of the waiting cases, so they are sent one at a time
	broken  error           // error of all later cases, once programVerifier has given up
	ctx     context.Context // cancelled by Close
	close   context.CancelFunc
	kept    sync.WaitGroup
}

// programCase is a case in flight.
type programCase struct {
	line   []byte
	sent   time.Time        // when it was sent to the running process; zero: it was not
	passed time.Time        // when that process first answered a later case; zero: it did not
	deaths int              // number of processes that crashed before they answered the case
	done   chan scoreResult // has room for one result
}

// scoreResult is the result of a case.
type scoreResult struct {
	score float64
	err   error
}

var errClosed = errors.New("the run is over")

func newProgram(s ProgramOptions) (Verifier, error) {
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
	v := &programVerifier{opt: s, name: strings.Join(s.Command, " "), restart: programRestart, waiting: map[int64]*programCase{}}
	v.ctx, v.close = context.WithCancel(context.Background())
	return v, nil
}

// Score sends a case to the program and waits for the reply. The first case starts the program.
func (v *programVerifier) Score(ctx context.Context, c Case) (float64, error) {
	id, asked, err := v.enlist(c)
	if err != nil {
		return 0, fmt.Errorf("verifier: program %s: %w", v.name, err)
	}
	for wait := v.opt.Timeout; ; {
		select {
		case r := <-asked.done:
			if r.err != nil {
				return 0, fmt.Errorf("verifier: program %s: %w", v.name, r.err)
			}
			return r.score, nil
		case <-ctx.Done():
			return 0, fmt.Errorf("verifier: program %s: %w%s", v.name, ctx.Err(), v.abandon(id))
		case <-time.After(wait):
			wait = v.checkTime(id)
		}
	}
}

// errSlow returns the error of a case that has no answer in time.
func (v *programVerifier) errSlow() error {
	return fmt.Errorf("no answer within %s: %w", v.opt.Timeout, context.DeadlineExceeded)
}

// checkTime settles a case whose time is over, or kills the process if it hangs. It returns the time until the next check.
func (v *programVerifier) checkTime(id int64) time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	asked, limit := v.waiting[id], v.opt.Timeout
	if asked == nil || asked.sent.IsZero() || v.process == nil || v.process.hung {
		return limit
	}
	silent, passed := min(time.Since(v.process.heard), time.Since(asked.sent)), time.Duration(0)
	if !asked.passed.IsZero() {
		passed = time.Since(asked.passed)
	}
	switch {
	case silent >= limit:
		v.process.hung = true
		v.process.kill()
		go v.process.end() // a child in another process group may keep its output open
		return limit
	case passed >= limit:
		v.settle(id, scoreResult{err: fmt.Errorf("%w%s", v.errSlow(), v.process.errorOutput())})
		v.proceed()
	}
	return limit - max(silent, passed)
}

// enlist gives a case its id and sends it. If no process is running yet, runOnce will send it.
func (v *programVerifier) enlist(c Case) (int64, *programCase, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.broken != nil {
		return 0, nil, v.broken
	}
	v.next++
	request := programRequest{ID: v.next, Query: c.Query.ID, Rollout: c.Attempt.Rollout, Agent: c.Attempt.Agent, Invocation: c.Attempt.Invocation,
		Question: c.Query.Text, Answer: c.Attempt.Answer, Accepted: c.Accepted(), Choices: c.Choices, Row: c.Query.Columns,
		Conversation: c.Attempt.Conversation}
	if c.Attempt.Subtask != "" {
		request.Subtask = &c.Attempt.Subtask
	}
	line, err := json.Marshal(request)
	if err != nil {
		return 0, nil, err
	}
	if len(line) > maxProgramRequest {
		return 0, nil, fmt.Errorf("the case has %d bytes, but the limit is %d", len(line), maxProgramRequest)
	}
	asked := &programCase{line: append(line, '\n'), done: make(chan scoreResult, 1)}
	v.waiting[v.next] = asked
	if v.process != nil {
		v.sendWaiting()
	} else if !v.running {
		v.running = true
		v.kept.Go(v.run)
	}
	return v.next, asked, nil
}

// sendWaiting sends the open cases to the process in the order of their ids. If v.careful, it sends only the first. The
// caller must hold v.mu.
func (v *programVerifier) sendWaiting() {
	for _, id := range slices.Sorted(maps.Keys(v.waiting)) {
		asked := v.waiting[id]
		if asked.sent.IsZero() {
			asked.sent = time.Now()
			v.process.send(asked.line)
		}
		if v.careful {
			return
		}
	}
}

// proceed sends the cases that waited for another case to be settled. The caller must hold v.mu.
func (v *programVerifier) proceed() {
	v.careful = false
	for _, asked := range v.waiting {
		v.careful = v.careful || asked.deaths > 0
	}
	if v.process != nil {
		v.sendWaiting()
	}
}

// abandon drops a case, whose reply may still arrive, and returns the program's output on standard error.
func (v *programVerifier) abandon(id int64) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.waiting, id)
	v.proceed()
	if v.process == nil {
		return ""
	}
	return v.process.errorOutput()
}

// run runs the program while cases are open.
func (v *programVerifier) run() {
	for v.runOnce() {
		select {
		case <-time.After(v.restart):
		case <-v.ctx.Done():
			v.mu.Lock()
			defer v.mu.Unlock()
			v.fail(errClosed)
			return
		}
	}
}

// runOnce starts a process, sends the open cases, and reads replies until the process ends. It returns true if keep
// should start another process.
func (v *programVerifier) runOnce() (again bool) {
	p, err := startProcess(v.opt.Command, v.opt.Dir)
	if err != nil {
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.fail(err)
	}
	v.mu.Lock()
	v.process = p
	v.proceed()
	v.mu.Unlock()
	stop := context.AfterFunc(v.ctx, p.end)
	err = p.lines(maxProgramReply, v.answer)
	stop()
	return v.ended(p.reason(err))
}

// ended records the end of the process and its reason. It returns true if keep should start another process.
func (v *programVerifier) ended(err error) (again bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.process.hung {
		err = fmt.Errorf("%w: %w", v.errSlow(), err)
		v.hangs++
	} else {
		v.deaths++
	}
	v.process = nil
	for id, asked := range v.waiting {
		if !asked.sent.IsZero() {
			asked.sent, asked.passed = time.Time{}, time.Time{}
			asked.deaths++
		}
		if asked.deaths >= programSends || v.hangs >= programDeaths {
			v.settle(id, scoreResult{err: err})
		}
	}
	switch {
	case v.ctx.Err() != nil:
		return v.fail(errClosed)
	case v.deaths >= programDeaths:
		return v.fail(fmt.Errorf("it ended %d times without an answer, last: %w", v.deaths, err))
	}
	if v.hangs >= programDeaths {
		v.hangs = 0 // later cases are tried again
	}
	v.running = len(v.waiting) > 0
	return v.running
}

// fail gives up the program: all open and later cases fail with err. It returns false.
func (v *programVerifier) fail(err error) bool {
	v.broken, v.running = err, false
	for id := range v.waiting {
		v.settle(id, scoreResult{err: err})
	}
	return false
}

// settle gives a case its result. The caller must hold v.mu.
func (v *programVerifier) settle(id int64, r scoreResult) {
	v.waiting[id].done <- r
	delete(v.waiting, id)
}

// answer processes a line of the program. It returns an error if the line is malformed, and the process must then be
// ended.
func (v *programVerifier) answer(line []byte) error {
	var r programReply
	if err := json.Unmarshal(line, &r); err != nil || r.ID == nil || (r.Score == nil) == (r.Error == "") {
		return fmt.Errorf(`it wrote %s; on standard output it must write {"id": N, "score": X} or {"id": N, "error": TEXT}, `+
			`and anything else on standard error`, quoted(string(line)))
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if *r.ID < 1 || *r.ID > v.next {
		return fmt.Errorf("it answered case %d, which was never sent to it", *r.ID)
	}
	v.deaths, v.hangs = 0, 0
	v.process.heard = time.Now()
	for id, asked := range v.waiting {
		if id < *r.ID && !asked.sent.IsZero() && asked.passed.IsZero() {
			asked.passed = v.process.heard
		}
	}
	if v.waiting[*r.ID] == nil {
		return nil // the case was abandoned
	}
	switch {
	case r.Error != "":
		v.settle(*r.ID, scoreResult{err: fmt.Errorf("it reports: %s", quoted(r.Error))})
	case !(*r.Score >= 0 && *r.Score <= 1):
		v.settle(*r.ID, scoreResult{err: fmt.Errorf("the score %g is outside 0 to 1", float64(*r.Score))})
	default:
		v.settle(*r.ID, scoreResult{score: float64(*r.Score)})
	}
	v.proceed()
	return nil
}

// Close ends the process and waits for its end. Cases in flight and later cases fail with an error.
func (v *programVerifier) Close() error {
	v.mu.Lock()
	v.close()
	v.broken = errClosed
	v.mu.Unlock()
	v.kept.Wait()
	return nil
}
