package agent

import (
	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
)

const responseOpen, responseClose = "<tool_response>", "</tool_response>"

// DelegationText returns a call of a sub-agent in the Hermes format, for demonstrations.
func DelegationText(name, task string) (string, error) { return CallText(name, taskArgument, task) }

// CallText returns a call of a function with one text argument in the Hermes format, for demonstrations. Every Template
// can read it. The JSON has no spaces because a word-level vocabulary may have a token for each piece between the
// values.
func CallText(name, argument, value string) (string, error) {
	arguments, err := marshalPlain(map[string]string{argument: value})
	if err != nil {
		return "", err
	}
	quoted, err := marshalPlain(name)
	return callformat.HermesOpen + "\n" + `{"name":` + string(quoted) + `,"arguments":` + string(arguments) + "}\n" + callformat.HermesClose, err
}

// ParseToolCalls reads calls in the Hermes format.
func ParseToolCalls(text string) []ParsedCall { return callformat.Hermes.Read(text, nil).Calls }
