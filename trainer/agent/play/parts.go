package play

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"unicode"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// Sloppiness holds the probabilities of mistakes in demonstrations made from parts. Training should unlearn these
// mistakes.
type Sloppiness struct {
	Skip    float64 // the main agent does not ask for a part
	Again   float64 // the main agent asks again for a part that was answered
	GiveUp  float64 // an agent that found nothing does not try again
	Narrow  float64 // a search uses only one half of the question's words
	Misread float64 // an agent quotes another value of the passage
}

// PartsDemonstrations makes demonstrations from the parts of a task's training queries. The main agent asks a sub-agent
// for one part a turn and states the conclusion from the answers. A sub-agent searches for a part and quotes a value
// from the search results. A main agent without sub-agents searches by itself. An agent searches with the tool whose only argument is
// "query" and adds numbers with the tool whose only argument is "expression". Without these tools it answers at once.
// The demonstrations call the real tools, so their results are the same as in a conversation.
type PartsDemonstrations struct {
	Err error // error of the last Demonstrations

	task       task.Task
	tools      *Toolbox
	seed       uint64
	sloppiness Sloppiness
}

// PartsDemonstrations returns a WithDemonstrations for the player's agent.
func (p *Player) PartsDemonstrations(s Sloppiness) *PartsDemonstrations {
	return &PartsDemonstrations{task: p.Task, tools: p.Tools, seed: p.Seed, sloppiness: s}
}

// Demonstrations implements task.WithDemonstrations on the first n training queries. It skips queries without parts.
func (d *PartsDemonstrations) Demonstrations(role task.AgentRole, n int) iter.Seq[task.Demonstration] {
	search, calculate := soleTool(d.tools.byName, "query"), soleTool(d.tools.byName, "expression")
	return func(yield func(task.Demonstration) bool) {
		defer d.tools.Take() // calls by demonstrations do not count as an agent's use of its tools
		d.Err = errors.New("no training query has parts: demonstrations cannot be made from them")
		for i := range int64(n) {
			q := d.task.Train(i)
			if len(q.Parts) == 0 {
				continue
			}
			d.Err = nil
			e := &partsDemonstrator{PartsDemonstrations: d, role: role, query: q, search: search, calculate: calculate,
				s: task.NewStream(d.seed, "parts.expert."+role.Agent, i)}
			for _, shown := range e.demonstrate() {
				if e.err != nil {
					d.Err = fmt.Errorf("demonstration of %s: %w", q.ID, e.err)
					return
				}
				if !yield(shown) {
					return
				}
			}
		}
	}
}

// soleTool returns the tool whose only argument has the given name, or nil. If there are several, it returns the first
// by name.
func soleTool(tools map[string]tool.Tool, argument string) tool.Tool {
	var found tool.Tool
	for _, t := range tools {
		var schema struct {
			Properties map[string]json.RawMessage `json:"properties"`
		}
		if json.Unmarshal(t.Schema(), &schema) != nil || len(schema.Properties) != 1 || schema.Properties[argument] == nil {
			continue
		}
		if found == nil || t.Name() < found.Name() {
			found = t
		}
	}
	return found
}

// partsDemonstrator plays one agent on one query.
type partsDemonstrator struct {
	*PartsDemonstrations
	role              task.AgentRole
	query             task.Query
	search, calculate tool.Tool
	s                 *task.Stream
	segments          []task.Segment
	err               error
}

// notFound is the answer of a sub-agent that found nothing.
const notFound = "unknown"

// maxAsked is the number of times that a demonstration may ask for one part.
const maxAsked = 3

func (e *partsDemonstrator) demonstrate() []task.Demonstration {
	if e.role.Main {
		return []task.Demonstration{e.plan()}
	}
	shown := make([]task.Demonstration, len(e.query.Parts))
	for i, p := range e.query.Parts {
		e.begin(p.Question)
		e.say(e.lookUp(p))
		shown[i] = e.end()
	}
	return shown
}

// plan returns the main agent's conversation.
func (e *partsDemonstrator) plan() task.Demonstration {
	e.begin(e.query.Text)
	found := make([]string, len(e.query.Parts))
	for i, p := range e.query.Parts {
		found[i] = notFound
		if len(found) > 1 && e.s.Chance(e.sloppiness.Skip) {
			continue
		}
		var known bool
		if p.Question, known = withFindings(p.Question, e.query, found[:i]); !known {
			continue
		}
		for range maxAsked {
			if found[i] = e.ask(p); found[i] == notFound && e.s.Chance(e.sloppiness.GiveUp) || found[i] != notFound && !e.s.Chance(e.sloppiness.Again) {
				break
			}
		}
	}
	e.conclude(found)
	return e.end()
}

// ask returns the answer to a part from a sub-agent, or from the main agent's own search.
func (e *partsDemonstrator) ask(p task.SubQuestion) string {
	if len(e.role.Delegates) == 0 {
		return e.lookUp(p)
	}
	answer := p.Answer
	switch { // the answer of a sub-agent with the same sloppiness
	case e.s.Chance(e.sloppiness.Narrow * e.sloppiness.GiveUp):
		answer = notFound
	case e.s.Chance(e.sloppiness.Misread):
		answer = e.foreignAnswer()
	}
	delegate := e.role.Delegates[e.s.IntN(len(e.role.Delegates))]
	e.segments = append(e.segments,
		task.Segment{Role: "assistant", Sampled: true, Call: &task.Delegation{Agent: delegate, Subtask: p.Question}},
		task.Segment{Role: "tool", Text: answer})
	return answer
}

// foreignAnswer returns the answer of a random part of a random query among the first thousand.
func (e *partsDemonstrator) foreignAnswer() string {
	const rows = 1000
	if other := e.task.Train(int64(e.s.IntN(rows))).Parts; len(other) > 0 {
		return other[e.s.IntN(len(other))].Answer
	}
	return notFound
}

// lookUp searches for a part and returns the quoted value. Without a search tool it returns the right answer.
func (e *partsDemonstrator) lookUp(p task.SubQuestion) string {
	if e.search == nil {
		return p.Answer
	}
	asked := strings.Fields(strings.TrimRight(p.Question, "?"))
	narrow := len(asked) > 1 && e.s.Chance(e.sloppiness.Narrow)
	if narrow {
		half := e.s.IntN(2)
		asked = asked[half*len(asked)/2 : (half+1)*len(asked)/2]
	}
	for {
		best := closest(e.use(e.search, "query", strings.Join(asked, " ")), p)
		values := valuesOf(best)
		others := slices.DeleteFunc(slices.Clone(values), func(v string) bool { return v == p.Answer })
		switch {
		case len(others) > 0 && e.s.Chance(e.sloppiness.Misread):
			return others[e.s.IntN(len(others))]
		case slices.Contains(values, p.Answer) || len(words(below(best), p.Answer)) > 0:
			return p.Answer
		case !narrow || e.s.Chance(e.sloppiness.GiveUp):
			return notFound
		}
		asked, narrow = strings.Fields(strings.TrimRight(p.Question, "?")), false
	}
}

// use calls a tool and appends the call and its result to the demonstrated conversation.
func (e *partsDemonstrator) use(t tool.Tool, argument, value string) string {
	arguments, _ := json.Marshal(map[string]string{argument: value}) // texts always marshal
	result, err := t.Call(context.Background(), arguments)
	if err != nil {
		e.err = errors.Join(e.err, fmt.Errorf("%s: %w", t.Name(), err))
	}
	e.say(agent.CallText(t.Name(), argument, value))
	e.segments = append(e.segments, task.Segment{Role: "tool", Text: result})
	return result
}

func (e *partsDemonstrator) begin(question string) {
	e.segments = []task.Segment{{Role: "user", Text: question}}
}

func (e *partsDemonstrator) say(text string) {
	e.segments = append(e.segments, task.Segment{Role: "assistant", Text: text, Sampled: true})
}

func (e *partsDemonstrator) end() task.Demonstration {
	return task.Demonstration{Query: e.query.ID, Agent: e.role.Agent, Segments: e.segments}
}

// closest returns the passage of a search's result that shares the most words with a part's question. Among equals it
// returns the first that contains the answer, or otherwise the first.
func closest(result string, p task.SubQuestion) (best string) {
	most := -1
	for passage := range strings.SplitSeq(result, "\n\n") {
		near := 0
		passageWords := wordsOf(passage)
		for _, w := range wordsOf(p.Question) {
			if slices.Contains(passageWords, w) {
				near += 2
			}
		}
		if slices.Contains(valuesOf(passage), p.Answer) {
			near++
		}
		if near > most {
			best, most = passage, near
		}
	}
	return best
}

func wordsOf(text string) []string {
	return strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}

// valuesOf returns the texts of a passage that could be quoted: the pieces between semicolons and line ends below its
// title, without the name before a colon.
func valuesOf(passage string) (values []string) {
	for piece := range strings.FieldsFuncSeq(below(passage), func(r rune) bool { return r == ';' || r == '\n' }) {
		if _, value, named := strings.Cut(piece, ": "); named {
			piece = value
		}
		if piece = strings.TrimSpace(piece); piece != "" {
			values = append(values, piece)
		}
	}
	return values
}

// below returns the text of a passage below its number and title.
func below(passage string) string {
	_, text, _ := strings.Cut(passage, "\n")
	return text
}
