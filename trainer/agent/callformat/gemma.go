package callformat

import "strings"

const (
	gemmaOpen, gemmaClose = "<|tool_call>", "<tool_call|>"
	gemmaHint             = `Write ` + gemmaOpen + `call:NAME{KEY:` + gemmaQuote + `...` + gemmaQuote + `}` + gemmaClose + `.`
)

// gemma is call:NAME{key:<|"|>text<|"|>,other:1} between <|tool_call> and <tool_call|>.
type gemma struct{}

func (gemma) Hint() string { return gemmaHint }

func (gemma) Mark() string { return gemmaOpen }

func (gemma) SafeLen(text string) int { return SafeLen(text, gemmaOpen) }

func (gemma) Read(text string, _ Functions) Reading {
	return readMarked(text, gemmaOpen, func(at int) ([]Call, int) {
		p := &literals{text: text, at: at}
		call, err := p.gemmaCall()
		if err != nil {
			return []Call{{Problem: "the tool call cannot be read. " + gemmaHint}}, p.at
		}
		return []Call{call}, skipMark(text, p.at, gemmaClose)
	})
}

func (p *literals) gemmaCall() (Call, error) {
	p.space()
	p.next("call:")
	rest := p.text[p.at:]
	n := strings.IndexAny(rest, "{<\n")
	if n <= 0 || rest[n] != '{' {
		return Call{}, errLiteral
	}
	p.at += n
	arguments, err := p.object(0)
	if err != nil {
		return Call{}, err
	}
	return Call{Name: strings.TrimSpace(rest[:n]), Arguments: arguments}, nil
}

func learnGemma(p *probes) Format {
	if strings.Contains(p.one, "call:"+probeName+"{"+probeKey+":"+gemmaQuote+probeValue+gemmaQuote) {
		return gemma{}
	}
	return nil
}
