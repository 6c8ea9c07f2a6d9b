package research

import (
	"fmt"
	"slices"
	"strings"
)

// Role is a role in the compact dialect. Each role has its own grammar.
type Role string

const (
	Planner    Role = "planner"    // the main agent of the team
	Researcher Role = "researcher" // the sub-agent
	Single     Role = "single"     // one agent that plays both roles, for comparison
)

// Limits of the grammar. A turn past a limit is invalid and ends the trajectory.
const (
	MaxCalls          = 5  // planner
	MaxSearches       = 3  // researcher
	MaxSingleSearches = 10 // single agent
	MaxNotes          = 10 // single agent

	plannerMaxNew    = 4
	researcherMaxNew = 7
)

// Action is the meaning of a sampled turn: Call, Tool, Answer, Continue or Invalid.
type Action interface{ action() }

type (
	// Call delegates a sub-task to the researcher; the observation is its answer.
	Call struct{ Subtask string }
	// Tool runs a tool; the observation is its result.
	Tool struct{ Name, Args string }
	// Continue is a valid turn without an observation: the agent samples another turn.
	Continue struct{}
	// Answer ends the conversation with a valid format.
	Answer struct{ Text string }
	// Invalid ends the conversation with an invalid format.
	Invalid struct{ Reason string }
)

func (Call) action()     {}
func (Tool) action()     {}
func (Continue) action() {}
func (Answer) action()   {}
func (Invalid) action()  {}

// Grammar is the state of one conversation in the compact dialect. A turn is a list of words, one token each, that ends
// with its first stop token. Grammar is not safe for concurrent use.
type Grammar struct {
	role                   Role
	calls, searches, notes int
}

// NewGrammar returns the grammar of one conversation. An unknown role is an error.
func NewGrammar(role Role) (*Grammar, error) {
	if !slices.Contains([]Role{Planner, Researcher, Single}, role) {
		return nil, fmt.Errorf("research: role %q is not planner, researcher or single", role)
	}
	return &Grammar{role: role}, nil
}

// Prompt returns the opening words of the conversation for the text of a query or sub-task.
func (g *Grammar) Prompt(text string) []string {
	words := strings.Fields(text)
	if len(words) == 0 || words[len(words)-1] != "?" {
		words = append(words, "?")
	}
	return words
}

// MaxNew is the largest number of tokens of a turn.
func (g *Grammar) MaxNew() int {
	if g.role == Planner {
		return plannerMaxNew
	}
	return researcherMaxNew
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
func (g *Grammar) Step(turn []string) Action {
	open, body, ok := splitTurn(turn)
	if !ok {
		return Invalid{fmt.Sprintf("%q is not one tagged phrase", strings.Join(turn, " "))}
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
		return answer(body)
	}
	return Invalid{"the " + string(g.role) + " has no turn " + open}
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

func (g *Grammar) call(body []string) Action {
	if len(body) != 2 || !IsName(body[0]) || !IsRelation(body[1]) {
		return Invalid{"a call is a name and a relation"}
	}
	if g.calls++; g.calls > MaxCalls {
		return Invalid{fmt.Sprintf("more than %d calls", MaxCalls)}
	}
	return Call{Subtask: strings.Join(body, " ")}
}

func (g *Grammar) search(body []string) Action {
	limit := MaxSearches
	if g.role == Single {
		limit = MaxSingleSearches
	}
	if len(body) < 1 || len(body) > 2 || slices.ContainsFunc(body, func(w string) bool { return !IsName(w) && !IsRelation(w) }) {
		return Invalid{"a search is one or two names or relations"}
	}
	if g.searches++; g.searches > limit {
		return Invalid{fmt.Sprintf("more than %d searches", limit)}
	}
	return Tool{Name: SearchTool, Args: strings.Join(body, " ")}
}

func (g *Grammar) note(body []string) Action {
	if !isFinding(body) {
		return Invalid{"a note is a fact or unknown"}
	}
	if g.notes++; g.notes > MaxNotes {
		return Invalid{fmt.Sprintf("more than %d notes", MaxNotes)}
	}
	return Continue{}
}

func (g *Grammar) result(body []string) Action {
	if !isFinding(body) {
		return Invalid{"a result is a fact or unknown"}
	}
	if g.searches == 0 {
		return Invalid{"a result before any search"}
	}
	return Answer{strings.Join(body, " ")}
}

func answer(body []string) Action {
	if len(body) != 1 || !(IsName(body[0]) || body[0] == Unknown) {
		return Invalid{"an answer is a name or unknown"}
	}
	return Answer{body[0]}
}

// splitTurn removes the tags of a turn "<x> body </x>", whose body has no tag.
func splitTurn(turn []string) (open string, body []string, ok bool) {
	if len(turn) < 2 || !strings.HasPrefix(turn[0], "<") || turn[len(turn)-1] != "</"+turn[0][1:] {
		return "", nil, false
	}
	return turn[0], turn[1 : len(turn)-1], true
}

// isFinding says whether body is "NAME REL|alias is|was NAME" or "unknown".
func isFinding(body []string) bool {
	if len(body) == 1 {
		return body[0] == Unknown
	}
	return len(body) == 4 && IsName(body[0]) && (IsRelation(body[1]) || body[1] == alias) &&
		(body[2] == "is" || body[2] == "was") && IsName(body[3])
}

func lastName(words []string) string {
	if len(words) > 0 && IsName(words[len(words)-1]) {
		return words[len(words)-1]
	}
	return Unknown
}
