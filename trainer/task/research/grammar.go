package research

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/dialect"
)

// Role is a role in the compact dialect. Each role has its own grammar.
type Role string

const (
	Planner    Role = "planner"    // the main agent of the team
	Researcher Role = "researcher" // the sub-agent
	Single     Role = "single"     // one agent that plays both roles, for comparison
)

// limits are the limits of the grammar. A turn beyond a limit is invalid and ends the trajectory.
type limits struct {
	calls          int // planner
	searches       int // researcher
	singleSearches int // single agent
	notes          int // single agent
	answers        int // names in an answer
}

// limitsOf returns the limits for chains or for fan-out questions.
func limitsOf(fanOut bool) limits {
	if fanOut {
		return limits{calls: 12, searches: 3, singleSearches: 20, notes: 12, answers: maxParts}
	}
	return limits{calls: 5, searches: 3, singleSearches: 10, notes: 10, answers: 1}
}

const (
	tags       = 2 // tags of a turn
	callWords  = 2
	otherWords = 5 // the most words of a researcher's turn, plus one
)

// Grammar is the state of one conversation in the compact dialect. A turn is a list of words, one token each, that ends
// with its first stop token. Grammar is not safe for concurrent use.
type Grammar struct {
	role                   Role
	limits                 limits
	subAgent               string // sub-agent that the planner calls
	calls, searches, notes int
}

// Prompt returns the opening words of the conversation for the text of a query or sub-task.
func (g *Grammar) Prompt(text string) []string {
	words := strings.Fields(text)
	if len(words) == 0 || words[len(words)-1] != "?" {
		words = append(words, "?")
	}
	return words
}

// MaxNew returns the largest number of tokens of a turn.
func (g *Grammar) MaxNew() int {
	switch g.role {
	case Planner:
		return tags + max(callWords, g.limits.answers)
	case Single:
		return tags + max(otherWords, g.limits.answers)
	}
	return tags + otherWords
}

// Stops returns the stop tokens of the role's turns.
func (g *Grammar) Stops() []string {
	switch g.role {
	case Planner:
		return []string{"</call>", "</answer>"}
	case Researcher:
		return []string{"</search>", "</result>"}
	default:
		return []string{"</search>", "</note>", "</answer>"}
	}
}

// Step parses a sampled turn, including its stop token, and returns its action.
func (g *Grammar) Step(turn []string) dialect.Action {
	open, body, ok := splitTurn(turn)
	if !ok {
		return invalid("%q is not one tagged phrase", strings.Join(turn, " "))
	}
	switch {
	case open == "<call>" && g.role == Planner:
		return g.call(body)
	case open == "<search>" && g.role != Planner:
		return g.search(body)
	case open == "<note>" && g.role == Single:
		return g.note(body)
	case open == "<result>" && g.role == Researcher:
		return g.result(body)
	case open == "<answer>" && g.role != Researcher:
		return g.answer(body)
	}
	return invalid("the %s has no turn %s", g.role, open)
}

func invalid(format string, args ...any) dialect.Action {
	return dialect.Action{Invalid: fmt.Sprintf(format, args...)}
}

func final(words []string) dialect.Action {
	return dialect.Action{Final: true, Answer: strings.Join(words, " ")}
}

// Observe returns the words of the observation for a sub-agent's answer (planner) or search results (other roles). The
// planner reads only the last word of an answer, or "unknown" if that word is not a name.
func (g *Grammar) Observe(text string) []string {
	words := strings.Fields(text)
	if g.role == Planner {
		return []string{"<resp>", lastName(words), "</resp>"}
	}
	return slices.Concat([]string{"<docs>"}, words, []string{"</docs>"})
}

func (g *Grammar) call(body []string) dialect.Action {
	if len(body) != 2 || !isName[body[0]] || !isRelation[body[1]] {
		return invalid("a call is a name and a relation")
	}
	if g.calls++; g.calls > g.limits.calls {
		return invalid("more than %d calls", g.limits.calls)
	}
	return dialect.Action{Calls: []dialect.Call{{Name: g.subAgent, Delegate: true, Task: strings.Join(body, " ")}}}
}

func (g *Grammar) search(body []string) dialect.Action {
	limit := g.limits.searches
	if g.role == Single {
		limit = g.limits.singleSearches
	}
	if len(body) < 1 || len(body) > 2 || slices.ContainsFunc(body, func(w string) bool { return !isName[w] && !isRelation[w] }) {
		return invalid("a search is one or two names or relations")
	}
	if g.searches++; g.searches > limit {
		return invalid("more than %d searches", limit)
	}
	arguments, _ := json.Marshal(map[string]string{queryArgument: strings.Join(body, " ")}) // a text always marshals
	return dialect.Action{Calls: []dialect.Call{{Name: SearchTool, Arguments: arguments}}}
}

// note accepts a note. It is a turn without an observation, so the agent samples another turn.
func (g *Grammar) note(body []string) dialect.Action {
	if !isFinding(body) {
		return invalid("a note is a fact or unknown")
	}
	if g.notes++; g.notes > g.limits.notes {
		return invalid("more than %d notes", g.limits.notes)
	}
	return dialect.Action{}
}

func (g *Grammar) result(body []string) dialect.Action {
	if !isFinding(body) {
		return invalid("a result is a fact or unknown")
	}
	if g.searches == 0 {
		return invalid("a result before any search")
	}
	return final(body)
}

func (g *Grammar) answer(body []string) dialect.Action {
	if len(body) < 1 || len(body) > g.limits.answers || slices.ContainsFunc(body, func(w string) bool { return !isName[w] && w != Unknown }) {
		return invalid("an answer is a name or unknown, one for each part; at most %d", g.limits.answers)
	}
	return final(body)
}

// splitTurn removes the tags of a turn "<x> body </x>". The body must not contain tags.
func splitTurn(turn []string) (open string, body []string, ok bool) {
	if len(turn) < 2 || !strings.HasPrefix(turn[0], "<") || turn[len(turn)-1] != "</"+turn[0][1:] {
		return "", nil, false
	}
	return turn[0], turn[1 : len(turn)-1], true
}

// isFinding reports whether body is "NAME REL|alias is|was NAME" or "unknown".
func isFinding(body []string) bool {
	if len(body) == 1 {
		return body[0] == Unknown
	}
	return len(body) == 4 && isName[body[0]] && (isRelation[body[1]] || body[1] == alias) &&
		(body[2] == "is" || body[2] == "was") && isName[body[3]]
}

func lastName(words []string) string {
	if len(words) > 0 && isName[words[len(words)-1]] {
		return words[len(words)-1]
	}
	return Unknown
}
