package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// result is an answer line of any command.
type result struct {
	IDs          []int32   `json:"ids"`
	Text         *string   `json:"text"`
	LogProbs     []float64 `json:"logprobs"`
	Entropy      []float64 `json:"entropy"`
	FinishReason string    `json:"finish_reason"`
	Error        string    `json:"error"`
}

func results(t testing.TB, out string) (all []result) {
	t.Helper()
	for line := range strings.Lines(out) {
		var r result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, r)
	}
	return all
}

func idsLine(ids []int32) string {
	return fmt.Sprintf("{\"ids\":%s}\n", strings.ReplaceAll(fmt.Sprint(ids), " ", ","))
}

// eosOf returns the ids that end a model's generation.
func eosOf(t *testing.T, dir string) []int32 {
	t.Helper()
	src, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	return src.Config().Tokens.EOS
}

func TestScoreAndGenerateGoldens(t *testing.T) {
	dirs := golden.Computed(golden.Models(t, arch.Families()))
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			want := golden.ReadTensors(t, filepath.Join(dir, "expected.safetensors"))
			rows, width := want.Rows(), int(want["input_ids"].Shape[1])
			in := ""
			for _, ids := range rows {
				in += idsLine(ids)
			}
			got := results(t, mustRun(t, in, "score", "--model", golden.Checkpoint(dir), "--temperature", "0.7"))
			tolerance := golden.Tolerance(t, dir, "logprobs_t0.7_max_abs", 5e-5)
			for r, ids := range rows {
				for i := range len(ids) - 1 {
					if d := math.Abs(got[r].LogProbs[i] - want["logprobs_t0.7"].Data[r*(width-1)+i]); !(d <= tolerance) {
						t.Errorf("row %d: log-prob %d is off by %g", r, i, d)
					}
				}
			}
			greedy, ending := want["greedy_ids"].Int32s(), "length"
			more := results(t, mustRun(t, idsLine(want["input_ids"].Int32s()[:8]), "generate", "--model", golden.Checkpoint(dir), "--temperature", "0", "--max-new", fmt.Sprint(len(greedy))))
			if eos := slices.IndexFunc(greedy, func(id int32) bool { return slices.Contains(eosOf(t, golden.Checkpoint(dir)), id) }); eos >= 0 {
				greedy, ending = greedy[:eos+1], "stop" // the golden ids continue after the end
			}
			if !slices.Equal(more[0].IDs, greedy) || more[0].FinishReason != ending {
				t.Errorf("greedy %v (%s), want %v", more[0].IDs, more[0].FinishReason, greedy)
			}
		})
	}
	golden.CountModels("command line", dirs, 2)
}

// A broken checkpoint is refused with one line that names the fault.
func TestGoldenBadCheckpoints(t *testing.T) {
	var table struct{ Cases []golden.Broken }
	golden.Read(t, "models", "bad/cases.json", &table)
	for _, c := range table.Cases {
		dir := golden.File(t, "models", filepath.Join("bad", c.Name))
		if c.Must == "load" {
			mustRun(t, `{"ids":[1,2,3]}`, "score", "--model", dir)
			continue
		}
		stdout, stderr, status := run(t, `{"ids":[1,2,3]}`, "score", "--model", dir)
		if status == 0 && strings.Contains(c.Must, "warn") {
			continue
		}
		if status != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, c.Name) {
			t.Errorf("%s: status %d, output %q, standard error %q", c.Name, status, stdout, stderr)
		}
		c.WantNamed(t, stderr)
	}
	golden.Count("models/bad on the command line", len(table.Cases))
}

// unpacked copies a tokenizer's folder and decompresses its files.
func unpacked(t *testing.T, dir string) string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(dir, "tokenizer.json.gz")); err != nil {
		return dir
	}
	out := t.TempDir()
	files := golden.Folder(t, dir, "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json", "generation_config.json")
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(out, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// rows reads a file of JSON lines.
func rows(t *testing.T, path string) (lines []string, values []map[string]any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatal(err)
		}
		lines, values = append(lines, line), append(values, v)
	}
	return lines, values
}

func TestTokenizeAndRenderGoldens(t *testing.T) {
	var folders []string
	for _, root := range golden.Dirs(t, "tokenizer", "tokenizer-2026") { // the second folder has tokenizers without chats
		found, err := filepath.Glob(filepath.Join(root, "*", "cases.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		folders = append(folders, found...)
	}
	if len(folders) == 0 {
		golden.File(t, "tokenizer", "NAME/cases.jsonl")
	}
	for _, path := range folders {
		dir := filepath.Dir(path)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			model := unpacked(t, dir)
			compare := func(file, want string, args ...string) {
				later := strings.HasSuffix(filepath.Dir(dir), "-2026")
				if _, err := os.Stat(filepath.Join(dir, file)); err != nil && (later || os.Getenv(golden.Env) != "") {
					t.Logf("golden: tokenizer/%s/%s: absent", filepath.Base(dir), file)
					return
				}
				lines, values := rows(t, filepath.Join(dir, file))
				out := strings.Split(strings.TrimSpace(mustRun(t, strings.Join(lines, ""), append(args, "--model", model)...)), "\n")
				if len(out) != len(lines) {
					t.Fatalf("%s: %d answers for %d lines", file, len(out), len(lines))
				}
				for i, line := range out {
					var got map[string]any
					if err := json.Unmarshal([]byte(line), &got); err != nil {
						t.Fatal(err)
					}
					for key, as := range map[string]string{"ids": "ids", "text": want} {
						if v, ok := got[key]; ok && fmt.Sprint(v) != fmt.Sprint(values[i][as]) {
							t.Errorf("%s:%d: %s is %.200v, want %.200v", file, i+1, key, v, values[i][as])
						}
					}
				}
				golden.Count("tokenizer/"+filepath.Base(dir)+"/"+file+" on the command line", len(lines))
			}
			compare("cases.jsonl", "", "tokenize")
			compare("cases.jsonl", "decoded", "tokenize", "--decode")
			compare("bytes.jsonl", "decoded", "tokenize", "--decode")
			compare("chat.jsonl", "rendered", "render")
		})
	}
}

func TestHostileLines(t *testing.T) {
	model := filepath.Join(testdata, "models", "llama-tiny")
	in := "{\"ids\":[1,2]}\n{\n{\"ids\":[1,999999]}\n{\"text\":\"no tokenizer\"}\n\x00\xff\n{\"ids\":[3,4]}\n"
	for _, command := range []string{"score", "generate"} {
		args := []string{command, "--model", model}
		if command == "generate" {
			args = append(args, "--max-new", "3")
		}
		stdout, stderr, status := run(t, in, args...)
		got := results(t, stdout)
		if status != 1 || len(got) != 6 || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "4 of 6 lines failed, the first: line 2: ") {
			t.Fatalf("%s: status %d, %d answers, %q", command, status, len(got), stderr)
		}
		for i, r := range got {
			if good := i == 0 || i == 5; good != (r.Error == "") || good != (len(r.LogProbs) > 0) {
				t.Errorf("%s: the answer to line %d is %+v", command, i+1, r)
			}
		}
	}
	wantRefusal(t, "{\"text\":\"a\"}\n{", []string{"tokenize", "--model", filepath.Join(testdata, "tokenizer", "smollm2")}, "line 2")
	wantRefusal(t, "", []string{"tokenize", "--model", model}, "llama-tiny", "tokenizer.json")
	wantRefusal(t, "", []string{"score", "--model", "not/there"}, "not/there")
	wantRefusal(t, "", []string{"generate", "--model", model, "--temperature=-1"}, "--temperature")
	wantRefusal(t, "", []string{"generate", "--model", model, "--stop", "x"}, "tokenizer.json")
	wantRefusal(t, "", []string{"generate", "--model", model, "--device", "tpu"}, "tpu")
	wantRefusal(t, "", []string{"chat", "--model", model}, "tokenizer.json")
	wantRefusal(t, "", []string{"score", "--model", model, "-i", "not/there.jsonl"}, "not/there.jsonl")
}

// Files work like pipes, and the answers do not depend on the number of slots.
func TestFiles(t *testing.T) {
	model := filepath.Join(testdata, "models", "qwen3-tiny")
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in.jsonl"), filepath.Join(dir, "out.jsonl")
	var lines strings.Builder
	for i := range 20 {
		lines.WriteString(idsLine([]int32{int32(i), 7, int32(i * 3)}))
	}
	if err := os.WriteFile(in, []byte(lines.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if stdout := mustRun(t, "", "generate", "--model", model, "--max-new", "12", "--slots", "8", "-i", in, "-o", out); stdout != "" {
		t.Errorf("with -o it printed %q", stdout)
	}
	written, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if piped := mustRun(t, lines.String(), "generate", "--model", model, "--max-new", "12", "--slots", "1"); piped != string(written) {
		t.Error("a pipe at 1 slot and a file at 8 slots give different answers")
	}
}

// If the reader of its output exits, the program ends, as other programs do.
func TestBrokenPipe(t *testing.T) {
	model := filepath.Join(testdata, "models", "llama-tiny")
	for _, command := range []string{"generate", "score"} {
		cmd := program(t, "", command, "--model", model)
		cmd.Stdin = io.MultiReader(bytes.NewReader(bytes.Repeat([]byte("{\"ids\":[1,2,3,4,5]}\n"), 20000)))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.HasPrefix(line, "{") {
			t.Errorf("%s: first answer %q, %v", command, line, err)
		}
		out.Close()
		cmd.Wait()
		if status := cmd.ProcessState.Sys().(syscall.WaitStatus); !(status.Signaled() && status.Signal() == syscall.SIGPIPE) && status.ExitStatus() != 1 {
			t.Errorf("%s ended with %v", command, cmd.ProcessState)
		}
		if strings.Contains(stderr.String(), "goroutine") {
			t.Errorf("%s: %s", command, stderr.String())
		}
	}
}

func TestAdvantages(t *testing.T) {
	out := mustRun(t, `{"groups":[{"rewards":[1,0]}]}`+"\n"+`{"run_seed":"42","query":"q-0001","rollout":0,"agent":"searcher","d":8,"d_k":3}`+"\n{\n", "advantages")
	want := `{"groups":[{"advantage":[1,-1],"mean":0.5,"std_population":0.5,"degenerate":false}]}` + "\n" + `{"multiplicity":[5,1,2],"draws":[0,0,0,0,2]}` + "\n" + `{"error":{"code":`
	if !strings.HasPrefix(out, want) {
		t.Errorf("got %s", out)
	}
}

// smollm2 returns the path of the real model that `make gsm8k` downloads.
func smollm2(t *testing.T) string {
	t.Helper()
	path := filepath.Join("..", "..", "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
	if _, err := os.Stat(path); err != nil {
		t.Fatal("models/SmolLM2-135M-Instruct.Q4_1.gguf is missing: make gsm8k downloads it")
	}
	return path
}

func compact(t *testing.T, data []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, data); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Runs every command that takes a GGUF with the real model. Checks the expected greedy continuations and a chat from a pipe.
func TestGoldenSmolLM2(t *testing.T) {
	model := smollm2(t)
	var expected struct {
		Prompts []struct {
			Messages json.RawMessage
			IDs      []int32
			Greedy   struct{ IDs []int32 }
		}
	}
	golden.Read(t, "models", "smollm2-expected.json", &expected)
	var in strings.Builder
	for _, p := range expected.Prompts {
		fmt.Fprintf(&in, "{\"messages\":%s}\n", compact(t, p.Messages))
	}
	in.WriteString(idsLine(expected.Prompts[0].IDs) + `{"messages":[{"role":"user","content":"What is 17 + 25?"}]}`)
	out := results(t, mustRun(t, in.String(), "generate", "--model", model, "--temperature", "0", "--max-new", "32"))
	for i, p := range expected.Prompts {
		want := p.Greedy.IDs // continues after the token 2, which ends a turn
		if end := slices.Index(want, 2); end >= 0 {
			want = want[:end+1]
		}
		if !slices.Equal(out[i].IDs, want) {
			t.Errorf("the continuation of prompt %d is %v, want %v", i, out[i].IDs, want)
		}
	}
	ids, sum := out[len(out)-2], out[len(out)-1]
	if !slices.Equal(ids.IDs, out[0].IDs) {
		t.Errorf("the continuation of messages is %v, of their ids %v", out[0].IDs, ids.IDs)
	}
	golden.Count("models/smollm2 on the command line", len(expected.Prompts))

	chat, stderr, status := run(t, "What is 17 + 25?\nThank you! Who are you?\n", "chat", "--model", model, "--temperature", "0", "--max-new", "16")
	answers := strings.Split(chat, "\n")
	if status != 0 || answers[0] != "17 + 25 = 32." || len(answers) < 3 || answers[1] == "" {
		t.Errorf("status %d, answers %q, notes %q", status, answers, stderr)
	}
	if sum.Text == nil || *sum.Text != answers[0] || sum.FinishReason != "stop" {
		t.Errorf("generate's answer is %+v, chat's is %q", sum, answers[0])
	}
	if out := mustRun(t, `{"text":"a  12  b"}`, "tokenize", "--model", model); !strings.HasPrefix(out, `{"ids":[`) {
		t.Errorf("tokenize's answer is %q", out)
	}
}
