package agent

import (
	"errors"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// Continue returns the tokens and the text of messages up to the end of the last message. The last message must be the
// assistant's, and the next turn continues it. If it has only reasoning, the turn continues the reasoning.
func (t *Template) Continue(messages []tokenizer.Message) ([]int32, string, error) {
	messages = t.withFunctions(t.printable(messages))
	last := messages[len(messages)-1]
	if last.Content == "" && last.Reasoning != "" {
		last.Reasoning, last.Content = last.Reasoning+probeThinking, probeTurn
	} else {
		last.Content += probeThinking
	}
	text, err := t.render(append(messages[:len(messages)-1:len(messages)-1], last), t.tools, false)
	if err != nil {
		return nil, "", err
	}
	text, _, found := strings.Cut(text, probeThinking)
	if !found {
		return nil, "", errors.New("the chat template does not print the assistant's last message, so it cannot be continued")
	}
	return t.cfg.Tokenizer.Encode(text), text, nil
}

// Within returns the template for a turn that continues an assistant's message. Whether that turn begins in thinking
// depends on the message.
func (t *Template) Within(content, reasoning string) *Template {
	if content == "" && reasoning == "" {
		return t
	}
	within := *t
	within.thinks.opened, within.thinks.bare = false, false
	_, _, closed := within.thinks.split(content)
	within.thinks.opened = !closed || content == ""
	return &within
}
