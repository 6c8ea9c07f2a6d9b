package play

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// Demonstrations turns the agent's demonstrations on n queries of source into trajectories with ID, Tokens and Sampled.
// It leaves out trajectories of more than limit tokens.
func (p *Player) Demonstrations(source task.Demonstrator, n, limit int) ([]agent.Trajectory, error) {
	var out []agent.Trajectory
	for d := range source.Demonstrations(p.Part, n) {
		t, err := p.teach(d)
		if p.delegatesInVain(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("demonstration %s: %w", d.Query, err)
		}
		t.ID = fmt.Sprintf("demonstration-%06d", len(out))
		if len(t.Tokens) <= limit {
			out = append(out, t)
		}
	}
	return out, nil
}

// delegatesInVain says whether a demonstration failed because it calls an agent that this run leaves out.
func (p *Player) delegatesInVain(err error) bool {
	var call *agent.UndemonstrableError
	return errors.As(err, &call) && slices.Contains(p.Absent, call.Call.Name)
}

// demonstrable is a dialect that can turn a written conversation into tokens.
type demonstrable interface {
	Demonstrate(question string, turns []agent.DemonstratedTurn) (tokens []int32, sampled []bool, err error)
}

// teach turns a demonstration into the tokens that the same conversation would have had.
func (p *Player) teach(d task.Demonstration) (t agent.Trajectory, err error) {
	if d.Verbatim {
		for _, s := range d.Segments {
			ids := p.Tokenizer.Encode(s.Text)
			t.Tokens = append(t.Tokens, ids...)
			t.Sampled = append(t.Sampled, slices.Repeat([]bool{s.Sampled}, len(ids))...)
		}
		return t, nil
	}
	dialect, err := p.dialect()
	if err != nil {
		return t, err
	}
	writer, ok := dialect.(demonstrable)
	if !ok {
		return t, fmt.Errorf("the task has its own dialect, which cannot read chats: use the task's own demonstrations (cold_start.demonstrations: task)")
	}
	question, turns, err := turnsOf(d.Segments)
	if err != nil {
		return t, err
	}
	t.Tokens, t.Sampled, err = writer.Demonstrate(question, turns)
	return t, err
}

// turnsOf splits a demonstration into the question and the agent's turns, each with the results that follow it.
func turnsOf(segments []task.Segment) (question string, turns []agent.DemonstratedTurn, err error) {
	if len(segments) == 0 {
		return "", nil, errors.New("it has no segments")
	}
	if first := segments[0]; first.Role != "user" || first.Sampled {
		return "", nil, fmt.Errorf("it begins with a segment of the role %s: want the question, of the role user; the system prompt is the agent's own", first.Role)
	}
	for i, s := range segments[1:] {
		switch {
		case !s.Sampled && s.Role != "tool":
			return "", nil, fmt.Errorf("segment %d has the role %s: want tool, or a turn of the agent, which is sampled", i+2, s.Role)
		case s.Sampled:
			turn := agent.DemonstratedTurn{Text: s.Text}
			if s.Call != nil {
				if turn.Text, err = agent.DelegationText(s.Call.Agent, s.Call.Subtask); err != nil {
					return "", nil, err
				}
			}
			turns = append(turns, turn)
		case len(turns) == 0:
			return "", nil, errors.New("a tool result comes before the agent's first turn")
		default:
			last := &turns[len(turns)-1]
			last.Results = append(last.Results, s.Text)
		}
	}
	if len(turns) == 0 {
		return "", nil, errors.New("it has no turn of the agent, which is sampled")
	}
	return segments[0].Text, turns, nil
}
