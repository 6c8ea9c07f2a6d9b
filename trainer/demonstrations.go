package trainer

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/learner"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// demonstrations are the cold start's conversations as sequences to learn, those of at most limit tokens.
func (w *Worker) demonstrations(limit int) ([]*learner.Sequence, error) {
	source, ok := w.task.(task.Demonstrator)
	file := &chats{path: w.cfg.Resolve(w.cfg.ColdStart.Demonstrations), alone: w.cfg.Run.Arm == "single"}
	for _, a := range w.cfg.Agents {
		file.agents = append(file.agents, a.Name)
	}
	if w.cfg.ColdStart.Demonstrations != "task" {
		source, ok = file, true
	}
	if !ok {
		return nil, fmt.Errorf("the task %s has no demonstrations: name a JSONL file of chats in cold_start.demonstrations", w.task.Name())
	}
	part := w.name
	if w.speaksCompact() {
		part = string(w.role())
	}
	var out []*learner.Sequence
	for d := range source.Demonstrations(part, w.cfg.ColdStart.Queries) {
		q, err := w.teach(d)
		if w.delegatesInVain(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("demonstration %s: %w", d.Query, err)
		}
		q.ID = fmt.Sprintf("demonstration-%06d", len(out))
		if len(q.Tokens) <= limit {
			out = append(out, q)
		}
	}
	return out, file.err
}

// delegatesInVain: the demonstration asks a sub-agent that the arm leaves out.
func (w *Worker) delegatesInVain(err error) bool {
	var call *agent.UndemonstrableError
	return w.cfg.Run.Arm == "single" && errors.As(err, &call) && w.cfg.Agent(call.Call.Name) != nil
}

// teach turns a demonstration into tokens exactly as a conversation would have. The segments of a grammar's
// demonstration are its words already.
func (w *Worker) teach(d task.Demonstration) (*learner.Sequence, error) {
	dialect, err := w.dialect()
	if err != nil {
		return nil, err
	}
	q := &learner.Sequence{}
	chat, ok := dialect.(*agent.Chat)
	if !ok {
		for _, s := range d.Segments {
			ids := w.tokenizer.Encode(s.Text)
			q.Tokens = append(q.Tokens, ids...)
			q.Sampled = append(q.Sampled, slices.Repeat([]bool{s.Sampled}, len(ids))...)
		}
		return q, nil
	}
	question, turns, err := turnsOf(d.Segments)
	if err != nil {
		return nil, err
	}
	q.Tokens, q.Sampled, err = chat.Demonstrate(question, turns)
	return q, err
}

// turnsOf is a demonstration as a question and the agent's turns, each with the results that follow it.
func turnsOf(segments []task.Segment) (question string, turns []agent.DemonstratedTurn, err error) {
	for i, s := range segments {
		switch {
		case i == 0:
			question = s.Text
		case s.Sampled:
			turn := agent.DemonstratedTurn{Text: s.Text}
			if s.Call != nil {
				if turn.Text, err = agent.ToolCallText(s.Call.Agent, s.Call.Subtask); err != nil {
					return "", nil, err
				}
			}
			turns = append(turns, turn)
		case len(turns) == 0:
			return "", nil, errors.New("a result before the agent's first turn")
		default:
			last := &turns[len(turns)-1]
			last.Results = append(last.Results, s.Text)
		}
	}
	return question, turns, nil
}

// chats is a JSONL file of demonstrations: {"agent": NAME, "messages": [{"role", "content"}, …]} a line; agent may
// be left out where all agents learn from all chats. Tool messages in a row are the results of one turn's calls.
type chats struct {
	path   string
	agents []string // of whom there may be chats
	alone  bool     // there is one agent, who learns from the chats of all
	err    error
}

// maxChatLine bounds one chat.
const maxChatLine = 16 << 20

// Demonstrations implements task.Demonstrator; what went wrong is in err afterwards.
func (c *chats) Demonstrations(agent string, n int) iter.Seq[task.Demonstration] {
	return func(yield func(task.Demonstration) bool) {
		f, err := os.Open(c.path)
		if err != nil {
			c.err = err
			return
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		lines.Buffer(make([]byte, 0, 1<<16), maxChatLine)
		given := 0
		for line := 1; lines.Scan() && given < n; line++ {
			d, err := parseChat(lines.Bytes())
			if err == nil && d.Agent != "" && !slices.Contains(c.agents, d.Agent) {
				err = fmt.Errorf("there is no agent %q: %s", d.Agent, strings.Join(c.agents, ", "))
			}
			if err != nil {
				c.err = fmt.Errorf("%s:%d: %w", c.path, line, err)
				return
			}
			if d.Agent != "" && d.Agent != agent && !c.alone {
				continue
			}
			d.Query = fmt.Sprintf("%s:%d", c.path, line)
			given++
			if !yield(d) {
				return
			}
		}
		c.err = lines.Err()
	}
}

func parseChat(line []byte) (task.Demonstration, error) {
	var chat struct {
		Agent    string `json:"agent"`
		Messages []struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"messages"`
	}
	if err := json.Unmarshal(line, &chat); err != nil {
		return task.Demonstration{}, err
	}
	d := task.Demonstration{Agent: chat.Agent}
	for i, m := range chat.Messages {
		possible := []string{"assistant", "tool"}
		switch i {
		case 0:
			possible = []string{"user"} // the system prompt is the agent's own, as in its conversations
		case 1:
			possible = []string{"assistant"}
		}
		if !slices.Contains(possible, m.Role) {
			return d, fmt.Errorf("message %d has the role %q; want user first, then assistant, then assistant or tool", i+1, m.Role)
		}
		d.Segments = append(d.Segments, task.Segment{Role: m.Role, Text: m.Content, Sampled: m.Role == "assistant"})
	}
	if len(d.Segments) < 2 {
		return d, errors.New("a chat is at least a user's message and an assistant's answer")
	}
	return d, nil
}
