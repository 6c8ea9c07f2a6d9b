package play

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
	"github.com/mgrpo/mgrpo/trainer/agent/dialect"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// Demonstrated is the result of Player.Demonstrations: the trajectories, and the numbers of demonstrations that are not among them.
type Demonstrated struct {
	Trajectories []agent.Trajectory // with ID, Tokens and Sampled
	Limit        int                // largest number of tokens of a trajectory
	TooLong      int                // demonstrations with more tokens
	Absent       int                // demonstrations that call an agent that this run leaves out
	Beyond       int                // demonstrations of a file after the first n
}

// All returns the number of demonstrations, used or not.
func (d Demonstrated) All() int { return len(d.Trajectories) + d.TooLong + d.Absent + d.Beyond }

// String returns the number of demonstrations that are used, and the reasons why others are not.
func (d Demonstrated) String() string {
	text := fmt.Sprintf("%d of %d demonstrations used", len(d.Trajectories), d.All())
	for _, unused := range []struct {
		n   int
		why string
	}{
		{d.TooLong, fmt.Sprintf("longer than the context of %d tokens", d.Limit)}, {d.Absent, "with calls of agents that this run leaves out"},
		{d.Beyond, "beyond cold_start.queries"},
	} {
		if unused.n > 0 {
			text += fmt.Sprintf("; %d %s", unused.n, unused.why)
		}
	}
	return text
}

// Demonstrations turns the agent's demonstrations on n queries of source into trajectories. It skips trajectories of more than limit
// tokens. It returns the error of a file of chats.
func (p *Player) Demonstrations(source task.WithDemonstrations, n, limit int) (Demonstrated, error) {
	out := Demonstrated{Limit: limit}
	for d := range source.Demonstrations(p.Role, n) {
		t, err := p.teach(d)
		var undemonstrable *agent.UndemonstrableError
		switch {
		case errors.As(err, &undemonstrable) && slices.Contains(p.Absent, undemonstrable.Call.Name):
			out.Absent++
		case err != nil:
			return out, fmt.Errorf("demonstration %s: %w", d.Query, err)
		case len(t.Tokens) > limit:
			out.TooLong++
		default:
			t.ID = fmt.Sprintf("demonstration-%06d", len(out.Trajectories))
			out.Trajectories = append(out.Trajectories, t)
		}
	}
	if file, ok := source.(*Chats); ok {
		out.Beyond = file.Beyond
		return out, file.Err
	}
	return out, nil
}

// functions returns the names of the tools and agents that the agent can call.
func (p *Player) functions() []string {
	var names []string
	for _, c := range p.SubAgents {
		names = append(names, c.Name)
	}
	for _, t := range p.offered() {
		names = append(names, t.Name())
	}
	return names
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
	dialect, err := p.dialectOf(d)
	if err != nil {
		return t, err
	}
	writer, ok := dialect.(*agent.Chat)
	if !ok {
		return t, fmt.Errorf("the task has its own dialect, which cannot read chats: use the task's own demonstrations (cold_start.demonstrations: task)")
	}
	for _, name := range d.Tools {
		if !slices.Contains(p.functions(), name) && !slices.Contains(p.Absent, name) {
			return t, fmt.Errorf("it lists the tool %q, which the agent %s does not have: the agent's tools are %s",
				name, p.Role.Agent, strings.Join(p.functions(), ", "))
		}
	}
	question, turns, err := turnsOf(d.Segments, writer)
	if err != nil {
		return t, err
	}
	if t.Tokens, t.Sampled, err = writer.Demonstrate(question, turns); err != nil {
		return t, err
	}
	mask(t.Sampled, d.Segments)
	return t, nil
}

// dialectOf returns the agent's dialect, or the dialect of a program's conversation. Consecutive demonstrations of one
// program share a dialect.
func (p *Player) dialectOf(d task.Demonstration) (dialect.Dialect, error) {
	if d.Program == nil {
		return p.dialect()
	}
	if p.chat != nil || p.Tokenizer == nil {
		return nil, errors.New("a hosted model cannot be trained")
	}
	key := fmt.Sprintf("%q %s", d.Program.System, d.Program.Functions)
	if p.program.key == key {
		return p.program.dialect, nil
	}
	chat, err := agent.NewChat(agent.ChatOptions{Tokenizer: p.Tokenizer, System: cmp.Or(d.Program.System, p.Role.System), Functions: d.Program.Functions,
		TemplateArgs: p.Variables, Date: p.Date})
	if err != nil {
		return nil, err
	}
	p.program = programDialect{key, chat}
	return chat, nil
}

// mask clears the sampled marks of turns that are not trained on. Each run of marks is one turn.
func mask(sampled []bool, segments []task.Segment) {
	at := 0
	for _, s := range segments {
		if !s.Sampled {
			continue
		}
		for at < len(sampled) && !sampled[at] {
			at++
		}
		for ; at < len(sampled) && sampled[at]; at++ {
			sampled[at] = !s.Untrained
		}
	}
}

// textOf returns the text of a turn of the agent.
func textOf(s task.Segment, writer *agent.Chat) (string, error) {
	if s.Call != nil {
		if s.Text != "" || s.Thinking != "" || len(s.Calls) > 0 {
			return "", errors.New("a segment with Call also has Text, Thinking or Calls: use Calls alone, which follow a text")
		}
		return agent.DelegationText(s.Call.Agent, s.Call.Subtask), nil
	}
	turn := agent.WrittenTurn{Thinking: s.Thinking, Text: s.Text}
	for _, call := range s.Calls {
		turn.Calls = append(turn.Calls, callformat.Call{Name: call.Name, Arguments: call.Arguments})
	}
	return writer.Write(turn)
}

// turnsOf splits a demonstration into the question and the agent's turns, each with the results that follow it.
func turnsOf(segments []task.Segment, writer *agent.Chat) (question string, turns []agent.DemonstratedTurn, err error) {
	if len(segments) == 0 {
		return "", nil, errors.New("it has no segments")
	}
	if first := segments[0]; first.Role != "user" || first.Sampled {
		return "", nil, fmt.Errorf("it begins with a segment of the role %s: "+
			"the first must be the question, of the role user (the system prompt comes from the agent's configuration)", first.Role)
	}
	for i, s := range segments[1:] {
		switch {
		case !s.Sampled && s.Role != "tool":
			return "", nil, fmt.Errorf("segment %d has the role %s: it must be tool, or a turn of the agent, which is sampled", i+2, s.Role)
		case s.Sampled:
			text, err := textOf(s, writer)
			if err != nil {
				return "", nil, fmt.Errorf("the agent's turn %d: %w", len(turns)+1, err)
			}
			turns = append(turns, agent.DemonstratedTurn{Text: text})
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
