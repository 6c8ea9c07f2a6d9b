package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// writeChatModel writes a model with random weights: llama-tiny with one word per id and a chat
// template. The word end ends an answer; if it is "", no word does.
func writeChatModel(t *testing.T, end string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors"} {
		data, err := os.ReadFile(filepath.Join(testdata, "models", "llama-tiny", name))
		if err != nil {
			t.Fatal(err)
		}
		data = []byte(strings.ReplaceAll(string(data), `"eos_token_id": 2,`, ""))
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	w := tokenizer.WordLevel{Unk: "w0", EOS: end, ChatTemplate: "{% for m in messages %}w3 {{ m.content }} {% endfor %}w4"}
	for i := range 320 {
		w.Vocab = append(w.Vocab, fmt.Sprintf("w%d", i))
	}
	if err := tokenizer.WriteWordLevel(dir, w); err != nil {
		t.Fatal(err)
	}
	return dir
}

// converse starts the program and returns it with its standard input, standard output and standard error.
func converse(t *testing.T, args ...string) (cmd *exec.Cmd, in io.WriteCloser, answers *bufio.Reader, notes *strings.Builder) {
	t.Helper()
	cmd, notes = program(t, "", args...), &strings.Builder{}
	cmd.Stdin, cmd.Stderr = nil, notes
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, in, bufio.NewReader(out), notes
}

// Ctrl-C ends the answer but not the program, however often it is pressed. Ctrl-D ends the program.
func TestChatInterrupted(t *testing.T) {
	cmd, in, answers, notes := converse(t, "chat", "--model", writeChatModel(t, ""), "--max-new", "100000")
	for turn := range 3 {
		fmt.Fprintf(in, "w%d\n/reset\n", 10+turn)
		if _, err := answers.ReadByte(); err != nil {
			t.Fatalf("turn %d: %v, %s", turn, err, notes.String())
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if line, err := answers.ReadString('\n'); err != nil || !strings.Contains(line, "w") && len(line) < 2 {
			t.Fatalf("turn %d: answer %q, %v", turn, line, err)
		}
	}
	in.Close()
	if _, err := io.ReadAll(answers); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("ends with %v: %s", err, notes.String())
	}
}

// Ctrl-C ends a command that reads lines.
func TestGenerateInterrupted(t *testing.T) {
	cmd, in, answers, notes := converse(t, "generate", "--model", filepath.Join(testdata, "models", "llama-tiny"))
	defer in.Close()
	fmt.Fprintln(in, `{"ids":[1,2]}`)
	if line, err := answers.ReadString('\n'); err != nil || !strings.HasPrefix(line, "{") {
		t.Fatalf("%q, %v", line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != 130 || notes.String() != "mgrpo: stopped\n" {
		t.Errorf("status %d, %q", status, notes.String())
	}
}

// A model's output must not control the terminal.
func TestPlain(t *testing.T) {
	var shown strings.Builder
	const said = "a\tb\n\x1b]52;c;aGk=\a\u009b2Jé🙂"
	if n, err := (plainWriter{&shown}).Write([]byte(said)); err != nil || n != len(said) || shown.String() != "a\tb\n?]52;c;aGk=??2Jé🙂" {
		t.Errorf("%q, %d, %v", shown.String(), n, err)
	}
}

// TestFlagsOfTheOtherForm checks that flags for a model are refused for a team, and the reverse, before any file is read.
func TestFlagsOfTheOtherForm(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"chat absent.yaml --temperature 0", "--temperature is for --model"},
		{"chat absent.yaml --max-new 3 --checkpoint x", "--max-new is for --model"},
		{"chat absent.yaml --system x", "--system is for --model"},
		{"chat --model absent --set a=b", "--set is for a team"},
		{"chat --model absent --checkpoint x", "--checkpoint is for a team"},
		{"serve absent.yaml --slots 3", "--slots is for --model"},
		{"serve --model absent --checkpoint x", "--checkpoint is for a team"},
	} {
		wantRefusal(t, "", strings.Fields(c.args), c.want)
	}
}
