package play

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// parted is a task of prepared queries.
type parted struct {
	task.Task
	queries []task.Query
}

func (p parted) Train(i int64) task.Query { return p.queries[i%int64(len(p.queries))] }

// points has the three kinds of questions whose answer follows from several parts, and one whose second part asks about
// the answer of the first.
var points = []task.Query{
	{ID: "total", Text: "What is the total Points of Chad and Peru in Curling?", Answer: "1012", Parts: []task.SubQuestion{
		{Question: "What is the Points of Chad in Curling?", Answer: "1,000"}, {Question: "What is the Points of Peru in Curling?", Answer: "12"}}},
	{ID: "lowest", Text: "Which of Chad and Peru has the lowest Points in Curling?", Answer: "Peru", Parts: []task.SubQuestion{
		{Question: "What is the Points of Chad in Curling?", Answer: "1,000"}, {Question: "What is the Points of Peru in Curling?", Answer: "12"}}},
	{ID: "same", Text: "Do Chad and Peru have the same Rank in Curling?", Answer: "no", Parts: []task.SubQuestion{
		{Question: "What is the Rank of Chad in Curling?", Answer: "1"}, {Question: "What is the Rank of Peru in Curling?", Answer: "9"}}},
	{ID: "hop", Text: "In Curling, what is the Points of the Country whose Rank is 9?", Answer: "12", Parts: []task.SubQuestion{
		{Question: "Which Country has Rank 9 in Curling?", Answer: "Peru"}, {Question: "What is the Points of Peru in Curling?", Answer: "12"}}},
}

const ranking = "[1] Curling\nCountry: Peru; Rank: 9; Points: 12\n\n[2] Curling\nCountry: Chad; Rank: 1; Points: 1,000"

// library returns the tools of a demonstration: a search that records its queries, and the calculator.
func library(asked *[]string, found string) *Toolbox {
	b := &Toolbox{}
	b.Add(tool.Func("search", "", "query", "", func(_ context.Context, q string) (string, error) {
		*asked = append(*asked, q)
		return found, nil
	}), tool.Limits{})
	b.Add(tool.Calculator(), tool.Limits{})
	return b
}

// script writes a demonstration as lines: the question, calls with their results, the answer.
func script(t *testing.T, d task.Demonstration) []string {
	t.Helper()
	var lines []string
	for i, s := range d.Segments {
		switch {
		case s.Call != nil:
			lines = append(lines, "> "+s.Call.Agent+": "+s.Call.Subtask)
		case s.Sampled && strings.HasPrefix(s.Text, "<tool_call>"):
			calls := callformat.Hermes.Read(s.Text, nil).Calls
			var argument map[string]string
			if err := json.Unmarshal(calls[0].Arguments, &argument); err != nil || len(argument) != 1 {
				t.Fatalf("%q: %v", s.Text, err)
			}
			for _, value := range argument {
				lines = append(lines, "> "+calls[0].Name+": "+value)
			}
		case s.Role == "tool":
			lines = append(lines, "< "+s.Text)
		case s.Sampled != (i > 0):
			t.Errorf("segment %d, role %s: got sampled=%v", i, s.Role, s.Sampled)
		default:
			lines = append(lines, s.Text)
		}
	}
	return lines
}

func shown(t *testing.T, role task.AgentRole, s Sloppiness, seed uint64, queries ...task.Query) (conversations [][]string) {
	t.Helper()
	var asked []string
	d := &PartsDemonstrations{task: parted{queries: queries}, tools: library(&asked, ranking), seed: seed, sloppiness: s}
	for c := range d.Demonstrations(role, len(queries)) {
		conversations = append(conversations, script(t, c))
	}
	if d.Err != nil {
		t.Fatal(d.Err)
	}
	return conversations
}

var (
	planner    = task.AgentRole{Agent: "planner", Main: true, Delegates: []string{"researcher"}}
	researcher = task.AgentRole{Agent: "researcher"}
	alone      = task.AgentRole{Agent: "planner", Main: true}
)

// TestPlannerOfParts: a planner without mistakes asks for every part and states the reference answer.
func TestPlannerOfParts(t *testing.T) {
	want := [][]string{
		{points[0].Text, "> researcher: What is the Points of Chad in Curling?", "< 1,000", "> researcher: What is the Points of Peru in Curling?", "< 12", "> calculator: 1000 + 12", "< 1012", "1012"},
		{points[1].Text, "> researcher: What is the Points of Chad in Curling?", "< 1,000", "> researcher: What is the Points of Peru in Curling?", "< 12", "Peru"},
		{points[2].Text, "> researcher: What is the Rank of Chad in Curling?", "< 1", "> researcher: What is the Rank of Peru in Curling?", "< 9", "no"},
		{points[3].Text, "> researcher: Which Country has Rank 9 in Curling?", "< Peru", "> researcher: What is the Points of Peru in Curling?", "< 12", "12"},
	}
	for i, got := range shown(t, planner, Sloppiness{}, 1, points...) {
		if !slices.Equal(got, want[i]) {
			t.Errorf("%s: got %q", points[i].ID, got)
		}
	}
}

// TestOtherConclusions: if no conclusion that a demonstration can draw gives the row's answer, the demonstration states the row's answer.
func TestOtherConclusions(t *testing.T) {
	parts := func(answers ...string) (out []task.SubQuestion) {
		for i, a := range answers {
			out = append(out, task.SubQuestion{Question: "How tall is " + string(rune('A'+i)) + "?", Answer: a})
		}
		return out
	}
	for _, q := range []task.Query{
		{Text: "Is A taller than B?", Answer: "yes", Parts: parts("180", "170")},
		{Text: "Is A as tall as B, or taller?", Answer: "no", Parts: parts("170", "170")},
		{Text: "Is A taller than 190?", Answer: "no", Parts: parts("180")},
		{Text: "Which of A, B and C is the second tallest?", Answer: "B", Parts: parts("180", "170", "160")},
	} {
		got := shown(t, planner, Sloppiness{}, 1, q)[0]
		if said := got[len(got)-1]; said != q.Answer {
			t.Errorf("%s %s", q.Text, said)
		}
	}
}

func TestFindingsAreWords(t *testing.T) {
	q := task.Query{Text: "Of 2012?", Parts: []task.SubQuestion{{Answer: "12"}, {Answer: "Öland"}, {Answer: "東京"}}}
	for question, want := range map[string]string{
		"How many points has 12 in 2012, at 12?": "How many points has 9 in 2012, at 9?",
		"Öland or Nyöland, Ölands?":              "Gotland or Nyöland, Ölands?",
		"12th, 1212, 12.5, 3.12 or 12,000":       "12th, 1212, 12.5, 3.12 or 12,000",
		"In 12, or 12.":                          "In 9, or 9.",
		"東京都の人口":                                 "大阪都の人口",
	} {
		if got, known := withFindings(question, q, []string{"9", "Gotland", "大阪"}); got != want || !known {
			t.Errorf("%s", got)
		}
		if _, known := withFindings(question, q, []string{notFound, notFound, notFound}); known != (want == question) {
			t.Errorf("%s: known %v without findings", question, known)
		}
	}
}

func TestResearcherOfParts(t *testing.T) {
	got := shown(t, researcher, Sloppiness{}, 1, points[0])
	want := []string{"What is the Points of Chad in Curling?", "> search: What is the Points of Chad in Curling", "< " + ranking, "1,000"}
	if len(got) != 2 || !slices.Equal(got[0], want) || got[1][3] != "12" {
		t.Errorf("%q", got)
	}
}

// TestFoundIsRead: a value is found in the text of a passage only, not in the passage's number or title, nor inside another value.
func TestFoundIsRead(t *testing.T) {
	for _, c := range []struct{ answer, found, want string }{
		{"1", "[1] Curling\nCountry: Peru; Rank: 9; Points: 12", notFound},
		{"2010", "[1] Curling of 2010\nCountry: Peru", notFound},
		{"12", "[1] Curling\nPoints: 9; Score: 12–7", "12"},
		{"Lima", "[1] Peru\nIts capital is Lima, on the coast.", "Lima"},
		{"Lim", "[1] Peru\nIts capital is Lima, on the coast.", notFound},
	} {
		var asked []string
		q := task.Query{ID: "q", Text: "Which of Peru?", Parts: []task.SubQuestion{{Question: "Which of Peru?", Answer: c.answer}}}
		d := &PartsDemonstrations{task: parted{queries: []task.Query{q}}, tools: library(&asked, c.found)}
		for shown := range d.Demonstrations(researcher, 1) {
			if got := script(t, shown); got[len(got)-1] != c.want {
				t.Errorf("%q in %q: got %q", c.answer, c.found, got)
			}
		}
	}
}

func TestAloneOfParts(t *testing.T) {
	got := shown(t, alone, Sloppiness{}, 1, points[0])
	want := []string{points[0].Text, "> search: What is the Points of Chad in Curling", "< " + ranking,
		"> search: What is the Points of Peru in Curling", "< " + ranking, "> calculator: 1000 + 12", "< 1012", "1012"}
	if len(got) != 1 || !slices.Equal(got[0], want) {
		t.Errorf("%q", got)
	}
}

// TestSloppiness: a mistake with probability 1 produces the conversation that its name describes.
func TestSloppiness(t *testing.T) {
	if got := shown(t, planner, Sloppiness{Skip: 1}, 1, points[0]); !slices.Equal(got[0], []string{points[0].Text, "unknown"}) {
		t.Errorf("skip: %q", got)
	}
	one := points[3]
	one.Parts, one.Text = one.Parts[1:], one.Parts[1].Question
	if got := shown(t, planner, Sloppiness{Again: 1}, 1, one); len(got[0]) != 1+2*maxAsked+1 || got[0][1] != got[0][3] {
		t.Errorf("again: %q", got)
	}
	if got := shown(t, planner, Sloppiness{Narrow: 1, GiveUp: 1}, 1, points[0]); !slices.Equal(got[0][1:], []string{"> researcher: What is the Points of Chad in Curling?", "< unknown",
		"> researcher: What is the Points of Peru in Curling?", "< unknown", "unknown"}) {
		t.Errorf("give up: %q", got)
	}
	if got := shown(t, planner, Sloppiness{Narrow: 1, GiveUp: 1}, 1, points[3]); !slices.Equal(got[0][1:], []string{"> researcher: Which Country has Rank 9 in Curling?", "< unknown", "unknown"}) {
		t.Errorf("the planner asks about an answer that it did not receive: %q", got)
	}
	for _, c := range shown(t, researcher, Sloppiness{Misread: 1}, 1, points[0]) {
		if answer := c[len(c)-1]; answer == "12" || answer == "1,000" || !strings.Contains(ranking, answer) {
			t.Errorf("misread: %q", c)
		}
	}
	// A researcher first searches for half of the words, gets no result, and searches again for all words.
	var asked []string
	d := &PartsDemonstrations{task: parted{queries: []task.Query{one}}, tools: library(&asked, "nothing found"), sloppiness: Sloppiness{Narrow: 1}}
	for c := range d.Demonstrations(researcher, 1) {
		if got := script(t, c); len(asked) != 2 || asked[1] != "What is the Points of Peru in Curling" || asked[0] != "What is the Points" && asked[0] != "of Peru in Curling" || got[len(got)-1] != "unknown" {
			t.Errorf("narrow: got %q after searches %q", got, asked)
		}
	}
}

// TestSumWithoutCalculator: a planner without a calculator states the sum of the answers that
// it received, even if it is wrong or incomplete.
func TestSumWithoutCalculator(t *testing.T) {
	sums := map[string]bool{}
	for seed := range uint64(40) {
		var asked []string
		tools := &Toolbox{}
		tools.Add(library(&asked, ranking).byName["search"], tool.Limits{})
		d := &PartsDemonstrations{task: parted{queries: points[:1]}, tools: tools, seed: seed, sloppiness: Sloppiness{Skip: 0.2, Misread: 0.4}}
		for c := range d.Demonstrations(planner, 1) {
			lines := script(t, c)
			var sum, terms float64
			for _, line := range lines {
				if told, ok := strings.CutPrefix(line, "< "); ok {
					if n, err := strconv.ParseFloat(strings.ReplaceAll(told, ",", ""), 64); err == nil {
						sum, terms = sum+n, terms+1
					}
				}
			}
			said := lines[len(lines)-1]
			if terms > 0 && said != strconv.FormatFloat(sum, 'f', -1, 64) {
				t.Errorf("seed %d: %q", seed, lines)
			}
			sums[said] = true
		}
	}
	if len(sums) < 3 {
		t.Errorf("got only the sums %v", sums)
	}
}

// TestPlannerUsesWrongAnswers: a planner continues with a wrong answer that it received. The next part asks about it, and the conclusion
// follows from it.
func TestPlannerUsesWrongAnswers(t *testing.T) {
	wrong, misled := 0, Sloppiness{Misread: 0.5}
	for seed := range uint64(20) {
		hop := shown(t, planner, misled, seed, points...)[3]
		if told := strings.TrimPrefix(hop[2], "< "); told != "Peru" {
			wrong++
			if hop[3] != "> researcher: What is the Points of "+told+" in Curling?" {
				t.Errorf("%q", hop)
			}
		}
		if last := hop[len(hop)-1]; last != strings.TrimPrefix(hop[4], "< ") {
			t.Errorf("%q", hop)
		}
	}
	if wrong == 0 {
		t.Error("the planner received no wrong answer")
	}
}

func TestDemonstrationsOfPartsAreRepeatable(t *testing.T) {
	sloppy := Sloppiness{Skip: 0.2, Again: 0.3, GiveUp: 0.3, Narrow: 0.3, Misread: 0.3}
	differ := false
	for _, p := range []task.AgentRole{planner, researcher, alone} {
		one, two := shown(t, p, sloppy, 7, points...), shown(t, p, sloppy, 7, points...)
		if !slices.EqualFunc(one, two, slices.Equal[[]string]) {
			t.Errorf("%s: the same seed gives %q and %q", p.Agent, one, two)
		}
		differ = differ || !slices.EqualFunc(one, shown(t, p, sloppy, 8, points...), slices.Equal[[]string])
	}
	if !differ {
		t.Error("another seed gives the same demonstrations")
	}
}

func TestDemonstrationsNeedParts(t *testing.T) {
	d := &PartsDemonstrations{task: parted{queries: []task.Query{{ID: "q", Text: "?", Answer: "!"}}}, tools: &Toolbox{}}
	for c := range d.Demonstrations(planner, 3) {
		t.Errorf("%+v", c)
	}
	if d.Err == nil || !strings.Contains(d.Err.Error(), "no training query has parts") {
		t.Error(d.Err)
	}
}

// TestDemonstrationsAreNoUse: calls of demonstrations do not count as use of the tools.
func TestDemonstrationsAreNoUse(t *testing.T) {
	var asked []string
	b := library(&asked, ranking)
	d := &PartsDemonstrations{task: parted{queries: points}, tools: b}
	for range d.Demonstrations(researcher, 2) {
	}
	if used, _ := b.Take(); len(asked) != 4 || len(used) != 0 {
		t.Errorf("%d searches of demonstrations are counted as %v, want none", len(asked), used)
	}
}
