package sandbox

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	starlarkjson "go.starlark.net/lib/json"
	starlarkmath "go.starlark.net/lib/math"
	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
)

// Serve runs the interpreter of the code tool or of the Python tool if the process was started as one. It then
// does not return. Otherwise it returns at once. Programs call trainer.ServeChild, which calls it.
func Serve() {
	if settings := os.Getenv(pythonEnv); settings != "" {
		exitSandbox(os.Stderr, becomePython(settings))
	}
	limit := os.Getenv(sandboxEnv)
	if limit == "" {
		return
	}
	if err := serve(limit); err != nil {
		fmt.Fprintln(os.Stderr, "mgrpo sandbox:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(limit string) error {
	memory, err := strconv.ParseInt(limit, 10, 64)
	if err != nil {
		return err
	}
	if err := confine(memory); err != nil {
		return err
	}
	go endWithParent()
	out := bufio.NewWriter(os.Stdout)
	answer := func(line []byte) error {
		if _, err := out.Write(append(line, '\n')); err != nil {
			return err
		}
		return out.Flush()
	}
	if err := answer([]byte(sandboxReady)); err != nil {
		return err
	}
	requests := json.NewDecoder(os.Stdin)
	for {
		var r sandboxRequest
		if err := requests.Decode(&r); err != nil {
			return nil // the parent has closed the pipe
		}
		a := interpret(r)
		debug.FreeOSMemory()
		a.Retire = heapBytes() > uint64(memory)/4
		line, err := json.Marshal(a)
		if err != nil {
			return err
		}
		if err := answer(line); err != nil {
			return err
		}
	}
}

// endWithParent ends this process at most one second after its parent ended.
func endWithParent() {
	parent := os.Getppid()
	for range time.Tick(time.Second) {
		if os.Getppid() != parent {
			os.Exit(1)
		}
	}
}

// confine limits the resources of this process. It cannot be undone.
func confine(memory int64) error {
	// RLIMIT_DATA counts private writable memory, including the memory of this binary's libraries.
	data, err := dataInUse()
	if err != nil {
		return err
	}
	// Go maps its heap in arenas of 64 MiB.
	const arenas = 2 * 64 << 20
	most := data + uint64(memory) + arenas
	limits := []struct {
		resource int
		value    uint64
	}{
		{syscall.RLIMIT_DATA, most},
		{syscall.RLIMIT_FSIZE, 0},
		{syscall.RLIMIT_CORE, 0},
	}
	for _, l := range limits {
		if err := syscall.Setrlimit(l.resource, &syscall.Rlimit{Cur: l.value, Max: l.value}); err != nil {
			return fmt.Errorf("setrlimit %d to %d: %w", l.resource, l.value, err)
		}
	}
	debug.SetTraceback("none")
	debug.SetMaxStack(int(min(memory/2, 64<<20)))
	debug.SetMemoryLimit(memory)
	return nil
}

// dataInUse returns the process's private writable memory in bytes.
func dataInUse() (uint64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(status), "VmData:")
	fields := strings.Fields(rest)
	if !found || len(fields) < 2 || fields[1] != "kB" {
		return 0, errors.New("/proc/self/status has no VmData in kB")
	}
	kib, err := strconv.ParseUint(fields[0], 10, 64)
	return kib << 10, err
}

func heapBytes() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapSys - m.HeapReleased
}

// resultName is the variable for the value of a program's last expression. No program can write this name.
const resultName = "result of the last line"

var dialect = &syntax.FileOptions{Set: true, While: true, TopLevelControl: true, GlobalReassign: true, Recursion: true}

// interpret runs one program.
func interpret(r sandboxRequest) sandboxAnswer {
	out := &output{left: r.Output}
	thread := &starlark.Thread{
		Name:  "program",
		Print: func(_ *starlark.Thread, s string) { out.write(s + "\n") },
		Load: func(*starlark.Thread, string) (starlark.StringDict, error) {
			return nil, errors.New("load is not available: math and json are there already")
		},
	}
	thread.SetMaxExecutionSteps(r.Steps)
	value, err := execute(thread, r.Program)
	if value != nil && value != starlark.None {
		out.write(value.String())
	}
	a := sandboxAnswer{Output: out.String()}
	if err != nil {
		a.Error = problem(err, r.Steps)
	}
	return a
}

// execute runs a program. If the last statement is an expression, it returns its value.
func execute(thread *starlark.Thread, program string) (starlark.Value, error) {
	file, err := dialect.Parse("program", program, 0)
	if err != nil {
		return nil, err
	}
	if n := len(file.Stmts); n > 0 {
		if last, ok := file.Stmts[n-1].(*syntax.ExprStmt); ok {
			at, _ := last.Span()
			file.Stmts[n-1] = &syntax.AssignStmt{OpPos: at, Op: syntax.EQ, LHS: &syntax.Ident{NamePos: at, Name: resultName}, RHS: last.X}
		}
	}
	predeclared := starlark.StringDict{"math": starlarkmath.Module, "json": starlarkjson.Module,
		"sum": starlark.NewBuiltin("sum", sum), "pow": starlark.NewBuiltin("pow", pow), "round": starlark.NewBuiltin("round", roundNumber)}
	compiled, err := starlark.FileProgram(file, predeclared.Has)
	if err != nil {
		return nil, err
	}
	globals, err := compiled.Init(thread, predeclared)
	return globals[resultName], err
}

// problem returns an error's message and its line in the program, for the model.
func problem(err error, steps uint64) string {
	var evaluation *starlark.EvalError
	if !errors.As(err, &evaluation) {
		return err.Error()
	}
	message := evaluation.Msg
	if strings.Contains(message, "too many steps") {
		message = fmt.Sprintf("the program took more than %d steps", steps)
	}
	for i := len(evaluation.CallStack) - 1; i >= 0; i-- {
		if frame := evaluation.CallStack[i]; frame.Pos.IsValid() && frame.Pos.Filename() == "program" {
			return fmt.Sprintf("line %d: %s", frame.Pos.Line, message)
		}
	}
	return message
}

// output stores a program's output up to a limit.
type output struct {
	strings.Builder
	left int
	full bool
}

func (o *output) write(s string) {
	if o.full {
		return
	}
	if len(s) > o.left {
		o.full = true
		s = strings.ToValidUTF8(s[:o.left], "") + "\n[more output not kept]"
	}
	o.left -= len(s)
	o.WriteString(s)
}
