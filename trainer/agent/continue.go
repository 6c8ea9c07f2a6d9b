package agent

import (
	"errors"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// Continue returns the tokens and the text of messages up to the end of the last one, an assistant's, which the next turn goes on with.
// A last message that has only reasoning goes on thinking.
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

// Within is the template of a turn that goes on with a message of the assistant: whether it begins in thinking depends on the message.
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
