package verify

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// programEnv names the program as which the test's own binary runs, and ownerEnv a run that owns one.
const (
	programEnv = "MGRPO_TEST_PROGRAM"
	ownerEnv   = "MGRPO_TEST_PROGRAM_OWNER"
)

func TestMain(m *testing.M) {
	if os.Getenv(ownerEnv) != "" {
		waitForKill()
	} else if mode := os.Getenv(programEnv); mode != "" {
		serve(mode)
	} else {
		os.Exit(m.Run())
	}
}

// serve runs a reward program. The tests below name its modes.
func serve(mode string) {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, maxProgramRequest+1)
	var held []string
	for in.Scan() {
		var r programRequest
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		score := 0.0
		if len(r.Accepted) > 0 && r.Answer == r.Accepted[0] {
			score = 0.75
		}
		reply := fmt.Sprintf(`{"id": %d, "score": %g}`, r.ID, score)
		if r.Answer == "poison" {
			fmt.Fprintln(os.Stderr, "ValueError: poisoned")
			os.Exit(3)
		}
		switch mode {
		case "reverse": // answers four cases in the reverse order
			if held = append(held, reply); len(held) == 4 {
				for i := range held {
					fmt.Println(held[3-i])
				}
			}
		case "once": // dies over its first case unless it has died before
			marker := r.Query
			if _, err := os.Stat(marker); err != nil {
				os.WriteFile(marker, nil, 0o600)
				os.Exit(1)
			}
			fmt.Println(reply)
		case "echo": // the request, as the program got it
			os.WriteFile(r.Query, in.Bytes(), 0o600)
			fmt.Println(reply)
		case "pid", "deaf":
			fmt.Printf(`{"id": %d, "error": "%d"}`+"\n", r.ID, os.Getpid())
		case "daemon": // leaves a process that keeps standard output open
			child := exec.Command("sleep", "3600")
			child.Stdout, child.SysProcAttr = os.Stdout, &syscall.SysProcAttr{Setsid: true}
			if err := child.Start(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(2)
			}
			fmt.Printf(`{"id": %d, "error": "%d"}`+"\n", r.ID, child.Process.Pid)
		case "noise":
			fmt.Println("hello")
		case "outside":
			fmt.Printf(`{"id": %d, "score": 1.5}`+"\n", r.ID)
		case "compared":
			fmt.Printf(`{"id": %d, "score": %t}`+"\n", r.ID, score > 0)
		case "rounded":
			fmt.Printf(`{"id": %d, "score": %g}`+"\n", r.ID, map[bool]float64{true: 1 + 0x1p-52, false: -1e-17}[score > 0])
		case "nan":
			fmt.Printf(`{"id": %d, "score": NaN}`+"\n", r.ID)
		case "neither":
			fmt.Printf(`{"id": %d}`+"\n", r.ID)
		case "stranger":
			fmt.Println(`{"id": 99, "score": 1}`)
		case "endless":
			fmt.Println(strings.Repeat("x", maxProgramReply+1))
		case "hang": // on one answer
			if r.Answer == "hang" {
				time.Sleep(time.Hour)
			}
			fmt.Println(reply)
		case "pool": // four cases at once
			pool <- struct{}{}
			go func() {
				time.Sleep(time.Duration(r.ID%7) * 10 * time.Millisecond)
				fmt.Println(reply)
				<-pool
			}()
		case "lost child": // hangs, and a child in another session keeps standard output open
			child := exec.Command("sleep", "20")
			child.Stdout, child.SysProcAttr = os.Stdout, &syscall.SysProcAttr{Setsid: true}
			_ = child.Start()
			time.Sleep(time.Hour)
		case "slow":
			time.Sleep(40 * time.Millisecond)
			fmt.Println(reply)
		case "forgets":
			if r.Answer != "hang" {
				fmt.Println(reply)
			}
		case "silent":
			fmt.Fprintln(os.Stderr, "still loading")
		default:
			fmt.Println(reply)
		}
	}
	if mode == "deaf" { // to the end of its input, too
		time.Sleep(time.Hour)
	}
}

var pool = make(chan struct{}, 4)

func openProgram(t *testing.T, mode string, timeout time.Duration) *programVerifier {
	t.Helper()
	t.Setenv(programEnv, mode)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	v, err := New(Options{Kind: Program, Program: ProgramOptions{Command: []string{self}, Timeout: timeout}})
	if err != nil {
		t.Fatal(err)
	}
	p := v.(*programVerifier)
	p.restart = time.Millisecond
	t.Cleanup(func() { p.Close() })
	return p
}

// The program receives the fields that docs/verifiers.md describes.
func TestProgramRequest(t *testing.T) {
	v := openProgram(t, "echo", 0)
	file := filepath.Join(t.TempDir(), "request")
	got, err := v.Score(t.Context(), Case{
		Query: task.Query{ID: file, Text: "what?", Answer: "b", Accepted: []string{"b", "B"}, Columns: []byte(`{"level":3,"question":"what?"}`)},
		Attempt: task.Attempt{Agent: "solver", Rollout: 2, Invocation: 1, Subtask: "part", Answer: "b",
			Conversation: []task.Message{{Role: "prompt", Text: "p"}, {Role: "assistant", Text: "b"}}},
		Choices: []string{"x", "y"},
	})
	if err != nil || got != 0.75 {
		t.Errorf("%v, %v", got, err)
	}
	request, _ := os.ReadFile(file)
	want := fmt.Sprintf(`{"id":1,"query":%q,"rollout":2,"agent":"solver","invocation":1,"subtask":"part","question":"what?","answer":"b","accepted":["b","B"],"choices":["x","y"],"row":{"level":3,"question":"what?"},"conversation":[{"role":"prompt","text":"p"},{"role":"assistant","text":"b"}]}`, file)
	if string(request) != want {
		t.Errorf("the program read\n%s\nwant\n%s", request, want)
	}
}

// Cases in flight are matched by their ids, in any order of replies.
func TestProgramMatchesById(t *testing.T) {
	v := openProgram(t, "reverse", 0)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			answer, want := strconv.Itoa(i), 0.0
			if i%2 == 0 {
				want = 0.75
			}
			accepted := strconv.Itoa(i + i%2)
			if got, err := v.Score(t.Context(), caseOf(answer, nil, accepted)); err != nil || got != want {
				t.Errorf("case %d: %v, %v; want %v", i, got, err, want)
			}
		})
	}
	wg.Wait()
}

// A program that crashes is started again and gets the open cases.
func TestProgramIsStartedAgain(t *testing.T) {
	v := openProgram(t, "once", 0)
	c := caseOf("b", nil, "b")
	c.Query.ID = filepath.Join(t.TempDir(), "died")
	for range 2 {
		if got, err := v.Score(t.Context(), c); err != nil || got != 0.75 {
			t.Fatalf("%v, %v", got, err)
		}
	}
}

// A case over which the program dies twice has no score; the others have theirs.
func TestProgramPoison(t *testing.T) {
	v := openProgram(t, "plain", 0)
	if got, err := v.Score(t.Context(), caseOf("b", nil, "b")); err != nil || got != 0.75 {
		t.Fatalf("%v, %v", got, err)
	}
	if _, err := v.Score(t.Context(), caseOf("poison", nil, "b")); err == nil || !strings.Contains(err.Error(), "ValueError: poisoned") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("%v does not tell what the program said", err)
	}
	if got, err := v.Score(t.Context(), caseOf("b", nil, "b")); err != nil || got != 0.75 {
		t.Errorf("after it: %v, %v", got, err)
	}
}

// The same where many cases are in flight: only that one has no score.
func TestProgramPoisonAmongMany(t *testing.T) {
	v := openProgram(t, "plain", 0)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			answer := "b"
			if i%7 == 3 {
				answer = "poison"
			}
			got, err := v.Score(t.Context(), caseOf(answer, nil, "b"))
			if answer == "poison" && (err == nil || !strings.Contains(err.Error(), "poisoned")) || answer == "b" && (err != nil || got != 0.75) {
				t.Errorf("%s: %v, %v", answer, got, err)
			}
		})
	}
	wg.Wait()
}

// A program that dies over everything is given up.
func TestProgramIsGivenUp(t *testing.T) {
	v := openProgram(t, "plain", 0)
	for range programDeaths {
		if _, err := v.Score(t.Context(), caseOf("poison", nil, "b")); err == nil {
			t.Fatal("a score of poison")
		}
	}
	if _, err := v.Score(t.Context(), caseOf("b", nil, "b")); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("ended %d times without an answer", programDeaths)) {
		t.Errorf("%v", err)
	}
}

// TestProgramScores: a score may be the result of a comparison, or outside 0 to 1 by rounding.
func TestProgramScores(t *testing.T) {
	for _, mode := range []string{"compared", "rounded"} {
		v := openProgram(t, mode, 0)
		for answer, want := range map[string]float64{"b": 1, "c": 0} {
			if got, err := v.Score(t.Context(), caseOf(answer, nil, "b")); err != nil || got != want {
				t.Errorf("%s: %q scores %v, %v", mode, answer, got, err)
			}
		}
	}
}

func TestProgramFailures(t *testing.T) {
	for mode, want := range map[string]string{
		"noise":    `it wrote "hello"; on standard output it must`,
		"nan":      `NaN}"; on standard output it must`,
		"neither":  "; on standard output it must",
		"stranger": "it answered case 99",
		"endless":  "a line of more than",
		"outside":  "1.5 is outside 0 to 1",
		"pid":      "it reports",
	} {
		v := openProgram(t, mode, 0)
		if got, err := v.Score(t.Context(), caseOf("b", nil, "b")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v; want %q", mode, got, err, want)
		}
		v.Close()
	}
	v := openProgram(t, "silent", 500*time.Millisecond)
	if _, err := v.Score(t.Context(), caseOf("b", nil, "b")); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer within 500ms") {
		t.Errorf("a silent program: %v", err)
	}
	if _, err := New(Options{Kind: Program, Program: ProgramOptions{Command: []string{"no-such-program-here"}}}); err == nil || !strings.Contains(err.Error(), "no-such-program-here") {
		t.Errorf("a program that is not there: %v", err)
	}
}

// TestProgramHangs: a program that hangs on one case is started again, and only that case has no score.
func TestProgramHangs(t *testing.T) {
	for _, mode := range []string{"hang", "forgets"} { // "forgets" answers the other cases
		v := openProgram(t, mode, 300*time.Millisecond)
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() {
				answer := "b"
				if i%6 == 3 {
					answer = "hang"
				}
				got, err := v.Score(t.Context(), caseOf(answer, nil, "b"))
				if answer == "hang" && (!errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer within 300ms")) ||
					answer == "b" && (err != nil || got != 0.75) {
					t.Errorf("%s, %s: %v, %v", mode, answer, got, err)
				}
			})
		}
		wg.Wait()
		if got, err := v.Score(t.Context(), caseOf("b", nil, "b")); err != nil || got != 0.75 {
			t.Errorf("%s, afterwards: %v, %v", mode, got, err)
		}
	}
}

// TestProgramHangsAlways: a program that hangs on every case delays any number of open cases by a few timeouts. Later cases are tried
// again.
func TestProgramHangsAlways(t *testing.T) {
	v := openProgram(t, "silent", 50*time.Millisecond)
	for range 2 {
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				if _, err := v.Score(t.Context(), caseOf("b", nil, "b")); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v", err)
				}
			})
		}
		wg.Wait()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.broken != nil {
		t.Errorf("it is given up: %v", v.broken)
	}
}

// TestProgramWithAPool: cases that overtake others do not cost these their scores.
func TestProgramWithAPool(t *testing.T) {
	v := openProgram(t, "pool", 300*time.Millisecond)
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if got, err := v.Score(t.Context(), caseOf("b", nil, "b")); err != nil || got != 0.75 {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
	wg.Wait()
}

// TestProgramHangsWithChild: the end of a hanging program does not wait for a child that has left its process group.
func TestProgramHangsWithChild(t *testing.T) {
	v := openProgram(t, "lost child", 100*time.Millisecond)
	if _, err := v.Score(t.Context(), caseOf("b", nil, "b")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// TestProgramIsSlow: the time that a case waits for others does not count.
func TestProgramIsSlow(t *testing.T) {
	v := openProgram(t, "slow", 2*time.Second)
	var wg sync.WaitGroup
	for range 75 { // three seconds
		wg.Go(func() {
			if got, err := v.Score(t.Context(), caseOf("b", nil, "b")); err != nil || got != 0.75 {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
	wg.Wait()
}

// pidOf returns the process id of a program in the mode pid or deaf.
func pidOf(err error) (int, error) {
	_, said, _ := strings.Cut(fmt.Sprint(err), `it reports: "`)
	return strconv.Atoi(strings.TrimSuffix(said, `"`))
}

// Close ends the process, even one that does not end by itself; what is asked later gets an error and starts no other.
func TestProgramClose(t *testing.T) {
	v := openProgram(t, "deaf", 0)
	_, err := v.Score(t.Context(), caseOf("b", nil, "b"))
	pid, notPid := pidOf(err)
	if notPid != nil {
		t.Fatal(err)
	}
	v.Close()
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Errorf("process %d after Close: %v", pid, err)
	}
	if _, err := v.Score(t.Context(), caseOf("b", nil, "b")); !errors.Is(err, errClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Close returns also where a process that the program has left keeps its standard output open.
func TestProgramCloseWithDaemon(t *testing.T) {
	v := openProgram(t, "daemon", 0)
	_, err := v.Score(t.Context(), caseOf("b", nil, "b"))
	pid, notPid := pidOf(err)
	if notPid != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(pid, syscall.SIGKILL)
	v.Close()
}

// waitForKill runs a program that waits to be killed.
func waitForKill() {
	self, _ := os.Executable()
	v, _ := New(Options{Kind: Program, Program: ProgramOptions{Command: []string{self}}})
	os.Unsetenv(ownerEnv) // the program is not an owner
	_, err := v.Score(context.Background(), caseOf("b", nil, "b"))
	fmt.Println(pidOf(err))
	select {}
}

// A run that is killed takes its program with it.
func TestProgramDiesWithItsRun(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(t.Context(), self)
	run.Env = append(os.Environ(), ownerEnv+"=1", programEnv+"=deaf")
	out, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil || pid == 0 {
		t.Fatalf("no process: %v", err)
	}
	run.Process.Kill()
	run.Wait()
	for syscall.Kill(pid, 0) == nil { // until the test's own time is over
		if state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err != nil || strings.Contains(string(state), ") Z ") {
			break // no parent may be left to wait for it
		}
		time.Sleep(10 * time.Millisecond)
	}
}
