package play

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// Chats is a JSONL file of demonstrations. Each line is {"agent": NAME, "messages": [{"role", "content"}, …]}; agent may
// be left out where all agents learn from all chats. Consecutive tool messages are the results of one turn's calls.
type Chats struct {
	Path   string
	Agents []string // agents that may have chats
	Alone  bool     // the run has a single agent, which learns from all chats
	Err    error    // error of the last Demonstrations, nil if it read the whole file
}

// maxChatLine is the size of the longest line, in bytes.
const maxChatLine = 16 << 20

// Demonstrations implements task.Demonstrator. It stops at the first bad line and puts the error into Err.
func (c *Chats) Demonstrations(p task.Part, n int) iter.Seq[task.Demonstration] {
	return func(yield func(task.Demonstration) bool) {
		f, err := os.Open(c.Path)
		if err != nil {
			c.Err = err
			return
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		lines.Buffer(make([]byte, 0, 1<<16), maxChatLine)
		given := 0
		for line := 1; lines.Scan() && given < n; line++ {
			d, err := parseChat(lines.Bytes())
			if err == nil && d.Agent != "" && !slices.Contains(c.Agents, d.Agent) {
				err = fmt.Errorf("there is no agent %q: %s", d.Agent, strings.Join(c.Agents, ", "))
			}
			if err != nil {
				c.Err = fmt.Errorf("%s:%d: %w", c.Path, line, err)
				return
			}
			if d.Agent != "" && d.Agent != p.Agent && !c.Alone {
				continue
			}
			d.Query = fmt.Sprintf("%s:%d", c.Path, line)
			given++
			if !yield(d) {
				return
			}
		}
		c.Err = lines.Err()
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
			possible = []string{"user"} // the system prompt comes from the configuration, as in a conversation
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
