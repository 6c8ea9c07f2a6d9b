package trainer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/store"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/research"
)

// OpenTask makes the configured task.
func OpenTask(cfg *config.Config) (task.Task, error) {
	t := cfg.Task
	switch t.Kind {
	case "research":
		r := t.Research
		return research.New(research.Settings{Seed: cfg.Run.Seed, EvalSize: cfg.Eval.Queries, Noise: research.Noise{
			OneWord: r.Keyword, Outdated: r.Was, RandomQuote: r.Random, GiveUp: r.GiveUp,
			WrongRelation: r.WrongRel, StopEarly: r.Early, AskAgain: r.Reask,
		}})
	}
	return nil, fmt.Errorf("task.kind %q is not known", t.Kind)
}

// OpenTool makes one of the configured tools, within its time and output limits.
func OpenTool(ctx context.Context, cfg *config.Config, name string) (tool.Tool, error) {
	return nil, errors.New("not known")
}

// storeOptions reads the secrets that the configuration only names.
func storeOptions(cfg *config.Config) (store.Options, error) {
	c := cfg.Store
	o := store.Options{
		Run: cfg.Run.Name, URL: c.URL, Username: c.Username, CAFile: cfg.Resolve(c.TLS.CA), CertFile: cfg.Resolve(c.TLS.Cert),
		KeyFile: cfg.Resolve(c.TLS.Key), ServerName: c.TLS.ServerName, AllowInsecure: c.AllowInsecure != "",
		AllowVolatile: c.AllowVolatile != "", Lease: c.Lease, Timeout: c.Timeout,
	}
	var err error
	o.Password, err = cfg.Password()
	return o, err
}

// chats is a JSONL file of demonstrations: {"agent": NAME, "messages": [{"role", "content"}, …]} a line;
// agent may be left out where all agents learn from all chats.
type chats struct {
	path string
	err  error
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
			if err != nil {
				c.err = fmt.Errorf("%s:%d: %w", c.path, line, err)
				return
			}
			if d.Agent != "" && d.Agent != agent {
				continue
			}
			d.Query = fmt.Sprintf("line-%d", line)
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
	for _, m := range chat.Messages {
		d.Segments = append(d.Segments, task.Segment{Role: m.Role, Text: m.Content, Sampled: m.Role == "assistant"})
	}
	if len(d.Segments) < 2 || d.Segments[0].Sampled {
		return d, errors.New("a chat is at least a user's message and an assistant's answer")
	}
	return d, nil
}
