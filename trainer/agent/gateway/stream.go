package gateway

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent"
)

// stream sends a turn to a client while it is sampled. The parts already sent are always a prefix of the reply.
type stream struct {
	agent   *AgentServer
	to      replyWriter
	stable  func(text string) agent.Partial // the part of an unfinished reply that no continuation changes
	stopIDs []int32                         // tokens that end a turn and have no text
	plain   bool                            // special tokens have no text
	sent    agent.Partial
}

// replyWriter writes a reply's parts in the form of one endpoint.
type replyWriter interface {
	open(id string) // called before the first token
	thinking(piece string)
	text(piece string)
	end(t *turn)
	fail(err *apiError) // called only after open
}

// samplingStarted is sent through the channel of tokens when sampling begins.
const samplingStarted = int32(-1)

// run samples a turn and sends it. It returns errors that occur before sampling begins. The replyWriter receives later
// errors.
func (s *stream) run(ctx context.Context, c turnCall, sample func(context.Context, turnCall) (*turn, error)) error {
	sampled := make(chan int32, s.agent.MaxTokens()+1)
	var id string
	c.onTurn, c.onToken = func(of string) { id = of; sampled <- samplingStarted }, func(token int32) { sampled <- token }
	var t *turn
	var err error
	go func() {
		defer close(sampled)
		t, err = sample(ctx, c)
	}()
	opened := s.follow(sampled, &id)
	switch {
	case err != nil && !opened:
		return err
	case err != nil:
		s.to.fail(toAPIError(err))
	case !strings.HasPrefix(t.reply.thinking, s.sent.Thinking) || !strings.HasPrefix(t.reply.text, s.sent.Text):
		s.to.fail(refuse(http.StatusInternalServerError, "server_error",
			"the reply does not begin with the streamed text: repeat the request without stream, and report this bug"))
	default:
		s.send(agent.Partial{Thinking: t.reply.thinking, Text: t.reply.text})
		s.to.end(t)
	}
	return nil
}

// follow sends the stable part of the reply as tokens arrive, and reports whether sampling began.
func (s *stream) follow(sampled <-chan int32, id *string) (opened bool) {
	var text strings.Builder
	decoder := s.agent.Tokenizer.NewStream(s.plain)
	for token := range sampled {
		switch {
		case token == samplingStarted:
			opened = true
			s.to.open(*id)
		case !slices.Contains(s.stopIDs, token):
			text.WriteString(decoder.Push(token))
			s.send(s.stable(text.String()))
		}
	}
	return opened
}

// send sends the part of now that was not sent before. Text follows the whole thinking.
func (s *stream) send(now agent.Partial) {
	if piece, ok := strings.CutPrefix(now.Thinking, s.sent.Thinking); ok && piece != "" {
		s.to.thinking(piece)
		s.sent.Thinking = now.Thinking
	}
	if piece, ok := strings.CutPrefix(now.Text, s.sent.Text); ok && piece != "" {
		s.to.text(piece)
		s.sent.Text = now.Text
	}
}

// cutPartial cuts an unfinished reply before the client's stop strings, as cut does with a finished one.
func cutPartial(stops []string, p agent.Partial) agent.Partial {
	p.Text = agent.SafePrefix(p.Text, stops...)
	if p.Thought {
		p.Thinking = cut(p.Thinking, stops)
	} else {
		p.Thinking = strings.TrimRight(agent.SafePrefix(p.Thinking, stops...), agent.Blanks)
	}
	return p
}

// cut returns a text up to the first of the client's stop strings.
func cut(text string, stops []string) string {
	for _, stop := range stops {
		text, _, _ = strings.Cut(text, stop)
	}
	return text
}

// sendTime is the time that a client has to read an event.
const sendTime = time.Minute

// eventWriter writes server-sent events.
type eventWriter struct {
	w     http.ResponseWriter
	begun bool
}

// send sends an event, whose name may be empty. If the client has gone, the request's context ends.
func (e *eventWriter) send(name string, data []byte) {
	if !e.begun {
		e.begun = true
		e.w.Header().Set("Content-Type", "text/event-stream")
		e.w.Header().Set("Cache-Control", "no-store")
	}
	c := http.NewResponseController(e.w)
	_ = c.SetWriteDeadline(time.Now().Add(sendTime))
	if name != "" {
		fmt.Fprintf(e.w, "event: %s\n", name)
	}
	fmt.Fprintf(e.w, "data: %s\n\n", data)
	_ = c.Flush()
}
