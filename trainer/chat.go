package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/play"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/run/worker"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// TeamChat is a team that answers a person's questions. Chat creates it, and it can be used until the function that received it
// returns. Its methods must not be called concurrently. Each question begins new conversations of the agents, as in training.
type TeamChat struct {
	Main      string // name of the main agent
	Questions int    // number of held-out questions

	workers  []*worker.Worker
	sampling policy.Sampling
	about    task.Query // the query to which a task's tools are bound
	turns    int        // number of questions so far
	sending  sync.Mutex
}

// Message is a text from one agent to another: a sub-task, the answer to it, or "(no answer: ...)" with the reason.
type Message struct{ From, To, Text string }

// Chat opens all agents of a checkpoint in this process and calls use with them. They sample as in evaluations. A task
// that binds tools to its queries, such as research, binds them to its first held-out query until [TeamChat.BindHeldOut]
// chooses another.
func Chat(ctx context.Context, cfg *config.Config, opt CheckpointOptions, use func(context.Context, *TeamChat) error) error {
	if cfg.PlayedByProgram() {
		return fmt.Errorf("task.program holds the conversations of %s: run mgrpo serve, and let the program use it", cfg.Main().Name)
	}
	return withCheckpoint(ctx, cfg, EvaluateOptions{CheckpointOptions: opt}, useChat, hooks{}, func(ctx context.Context, g *checkpointGroup) error {
		c := &TeamChat{Main: cfg.Main().Name, workers: g.workers, sampling: worker.Sampling(cfg, store.EvalPhase(g.step))}
		questions := c.worker(c.Main).Parts().Player.Task
		if c.Questions = questions.EvalSize(); c.Questions > 0 {
			c.about = questions.Eval(0)
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		return g.forEachWorker(ctx, func(w *worker.Worker, ctx context.Context) error {
			if !w.Main() {
				<-ctx.Done()
				return nil
			}
			defer cancel()
			return use(ctx, c)
		})
	})
}

func (c *TeamChat) worker(name string) *worker.Worker {
	i := slices.IndexFunc(c.workers, func(w *worker.Worker) bool { return w.Name() == name })
	return c.workers[i]
}

// BindHeldOut returns held-out question n of the task, 0 <= n < Questions. Tools are then bound to this query, for example to its
// knowledge base, also for later questions.
func (c *TeamChat) BindHeldOut(n int) task.Query {
	c.about = c.worker(c.Main).Parts().Player.Task.Eval(n)
	return c.about
}

// Ask makes the main agent answer a question, and returns its answer. It calls onMessage with every sub-task and the answer to
// it, one at a time; onMessage may be nil. It returns an error if the agents cannot answer, and the error of ctx when that ends.
func (c *TeamChat) Ask(ctx context.Context, question string, onMessage func(Message)) (answer string, err error) {
	c.turns++
	q := c.about
	q.ID, q.Row, q.Text = fmt.Sprintf("chat-%d", c.turns), "chat", question
	send := func(from, to, text string) {
		if onMessage == nil {
			return
		}
		c.sending.Lock()
		defer c.sending.Unlock()
		onMessage(Message{from, to, text})
	}
	delegate := func(ctx context.Context, d agent.Delegation) (string, error) {
		send(c.Main, d.Agent, d.Task)
		t, err := c.play(ctx, d.Agent, play.Conversation{Query: q, Invocation: d.Index, Repeat: d.Repeat, Text: d.Task})
		var silent *agent.UnansweredError
		if errors.As(err, &silent) {
			send(d.Agent, c.Main, fmt.Sprintf("(no answer: %v)", silent.Err))
		}
		if err != nil {
			return "", err
		}
		text := worker.AnswerText(t)
		send(d.Agent, c.Main, text)
		return text, nil
	}
	t, err := c.play(ctx, c.Main, play.Conversation{Query: q, Text: question, Delegate: delegate})
	if err != nil {
		return "", err
	}
	return worker.AnswerText(t), nil
}

func (c *TeamChat) play(ctx context.Context, name string, of play.Conversation) (agent.Trajectory, error) {
	of.Sampling = c.sampling
	return c.worker(name).Parts().Player.Play(ctx, of)
}
