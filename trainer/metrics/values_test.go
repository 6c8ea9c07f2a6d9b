package metrics

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

var update = flag.Bool("update", false, "rewrite docs/metrics.md")

const docIntro = `# Metrics

<!-- Generated from trainer/metrics/values.go: go test ./trainer/metrics -update -->

Every agent reports a record for each training step, each held-out evaluation and the cold start. The numbers go to
two places in the run's folder, and to the terminal:

| where | what |
|---|---|
| ` + "`metrics.jsonl`" + ` | One JSON object a line: ` + "`time`, `kind`, `step`, `agent`, `values`, `counts`" + `. A line of kind ` + "`note`" + ` has ` + "`time`, `kind`, `agent`, `severity`, `topic` and `text`" + `: a note belongs to no step. |
| ` + "`trajectories/PHASE/AGENT.jsonl`" + ` | The conversations, with masks, log-probs, rewards and advantages. |

` + "`mgrpo report runs/NAME`" + ` draws all of this in one HTML file. During a run, the newest values are also at
` + "`GET /metrics`" + ` of a worker (` + "`health:`" + ` in [config.md](config.md)), as ` + "`mgrpo_KIND_NAME{agent=\"AGENT\"}`" + ` for Prometheus;
numbers by tool also have a label ` + "`tool`" + `. ` + "`mgrpo track`" + ` forwards the records to Weights & Biases, MLflow or TensorBoard
([tracking.md](tracking.md)).

Step n is the n-th training step, and evaluation n evaluates the weights after step n; evaluation 0 comes before
training. Trajectories of step n are in the folder ` + "`step-(n-1)`" + `, named after the version of the weights that
sampled them. An unknown value is absent, never 0.

A resumed run appends to the file. A record of an agent replaces that agent's earlier records of the same step and of
later steps; readers of the file keep the last.

## Evaluations

The main agent's record of an evaluation also has ` + "`scores`" + `: the accuracy of each evaluation set (` + "`task.eval`" + `, and the sets of
` + "`task.eval_sets`" + ` by name), and within it the accuracy for each kind, level and number of parts, if its questions differ in them. ` + "`mgrpo eval`" + ` prints
them as a table or, with ` + "`--json`" + `, as JSON, and the report shows the scores of the last evaluation.

| field | meaning |
|---|---|
| ` + "`set`" + `, ` + "`by`" + `, ` + "`of`" + ` | name of the set, absent for ` + "`task.eval`" + `; ` + "`kind`" + `, ` + "`level`" + ` or ` + "`parts`" + `, and its value |
| ` + "`questions`" + `, ` + "`samples`" + ` | questions, and answers to each (` + "`eval.samples`" + `) |
| ` + "`accuracy`" + ` | mean correctness over questions and samples |
| ` + "`interval`" + ` | 95 % bootstrap interval of the accuracy: the percentiles of 2,000 resamples of the questions. A function of the results and ` + "`run.seed`" + ` |
| ` + "`pass`" + ` | by k: unbiased estimate of the probability that one of k answers is right (correctness 1), up to ` + "`samples`" + ` |
| ` + "`best`" + ` | by k: expected correctness of the best of k answers. Equal to ` + "`pass`" + ` if correctness is 0 or 1 |
| ` + "`calls`" + ` | calls of sub-agents in one answer |
| ` + "`tokens`" + ` | tokens that all agents read and wrote for one answer; absent if a hosted model's server does not report it |

` + "`mgrpo eval`" + ` also prints the cost of a question: the tokens that all agents read and wrote for its samples, and seconds (the time of the whole
evaluation divided by its questions, since conversations run in parallel). With ` + "`--agent`" + ` only the main agent's process prints it.
`

// page returns docs/metrics.md.
func page() string {
	var b strings.Builder
	b.WriteString(docIntro)
	for _, s := range append(Sections[:len(Sections):len(Sections)], Histograms, ByTool) {
		fmt.Fprintf(&b, "\n## %s\n\nSource: %s.\n\n| name | unit | records | meaning |\n|---|---|---|---|\n", s.Title, s.Source)
		for _, v := range s.Values {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", v.Name, v.Unit, v.Kinds, strings.ReplaceAll(v.Meaning, "|", `\|`))
		}
	}
	return b.String()
}

func TestDoc(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "metrics.md")
	if *update {
		if err := os.WriteFile(path, []byte(page()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != page() {
		t.Errorf("docs/metrics.md differs from values.go (%v): run go test ./trainer/metrics -update", err)
	}
}

// TestNames compares the constants with the names that Sections, Histograms and ByTool explain.
func TestNames(t *testing.T) {
	explained := map[string]bool{}
	for _, s := range append(Sections[:len(Sections):len(Sections)], Histograms, ByTool) {
		for _, v := range s.Values {
			name := v.Name
			for _, prefix := range []string{PassAtPrefix, GroupsOnPrefix, TermPrefix} {
				if rest, ok := strings.CutPrefix(name, prefix); ok && rest == strings.ToUpper(rest) {
					name = prefix
				}
			}
			if explained[name] {
				t.Errorf("%s is explained twice", name)
			}
			explained[name] = true
		}
	}
	constants := constants(t, "names.go")
	for name, constant := range constants {
		if !explained[name] {
			t.Errorf("values.go does not explain %s = %q", constant, name)
		}
	}
	for name := range explained {
		if constants[name] == "" {
			t.Errorf("%q has no constant in names.go", name)
		}
	}
	number := new(float64)
	loss := mgrpo.LossStats{EntropyMean: number, RefKLMean: number, TISMean: number, TISMax: number, TISTruncatedFrac: number, BehaviourGapMean: number, BehaviourGapMax: number}
	for name := range loss.Values() { // the fields' tags have the names
		if constants[name] == "" {
			t.Errorf("mgrpo.LossStats has %q, which has no constant in names.go", name)
		}
	}
}

// constants returns the constants of a file by their values.
func constants(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			value, _ := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if again := out[value]; again != "" {
				t.Errorf("%s and %s are both %q", again, spec.Names[0], value)
			}
			out[value] = spec.Names[0].Name
		}
		return true
	})
	return out
}

// TestNoNameIsALiteral reads the source of the packages that fill in Record.Values. They use the constants.
func TestNoNameIsALiteral(t *testing.T) {
	names := 0
	for _, dir := range []string{"run/worker", "engine/learner", "team/archive"} {
		files, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			if !strings.HasSuffix(path, "_test.go") {
				names += namesIn(t, path)
			}
		}
	}
	if names < 50 {
		t.Errorf("only %d names: the test no longer finds them", names)
	}
}

// namesIn counts the names of values in a file: keys of maps of numbers, indexes into such maps, and names passed to a mean's into. It
// reports literals.
func namesIn(t *testing.T, path string) (names int) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	note := func(e ast.Expr) {
		if b, ok := e.(*ast.BinaryExpr); ok { // PassAtPrefix + n
			e = b.X
		}
		switch e := e.(type) {
		case *ast.BasicLit:
			if e.Kind == token.STRING {
				t.Errorf("%s: %s is a literal: use a constant of trainer/metrics", set.Position(e.Pos()), e.Value)
			}
		case *ast.SelectorExpr:
			names++
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IndexExpr:
			if sel, ok := n.X.(*ast.SelectorExpr); ok && sel.Sel.Name == "Values" {
				note(n.Index)
			} else if id, ok := n.X.(*ast.Ident); ok && id.Name == "v" {
				note(n.Index)
			}
		case *ast.CallExpr:
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "into" && len(n.Args) == 2 {
				note(n.Args[1])
			}
		case *ast.CompositeLit:
			if m, ok := n.Type.(*ast.MapType); ok && isNumber(m.Value) {
				for _, e := range n.Elts {
					note(e.(*ast.KeyValueExpr).Key)
				}
			}
		}
		return true
	})
	return names
}

func isNumber(e ast.Expr) bool {
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "float64"
}
