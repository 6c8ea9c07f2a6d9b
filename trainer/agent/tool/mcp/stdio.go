package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// stdioTransport runs a server as a program and communicates through its standard input and output, one JSON message
// per line. It skips and reports other lines that the program prints there.
type stdioTransport struct {
	command *exec.Cmd
	note    func(line string) // receives skipped lines; nil: they are discarded
}

// Connect starts the program.
func (t *stdioTransport) Connect(ctx context.Context) (mcp.Connection, error) {
	stdout, err := t.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stdin, err := t.command.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := t.command.Start(); err != nil {
		return nil, err
	}
	messages := &messageLines{in: bufio.NewReaderSize(stdout, 64<<10), note: t.note}
	return (&mcp.IOTransport{Reader: io.NopCloser(messages), Writer: &programInput{WriteCloser: stdin, command: t.command}}).Connect(ctx)
}

// programInput is the standard input of a program. Close ends the program by closing its input, and by signals if that
// is not enough.
type programInput struct {
	io.WriteCloser
	command *exec.Cmd
	once    sync.Once
	end     error
}

func (p *programInput) Close() error {
	p.once.Do(func() {
		_ = p.WriteCloser.Close() // the program may be gone
		ended := make(chan error, 1)
		go func() { ended <- p.command.Wait() }()
		for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			select {
			case p.end = <-ended:
				return
			case <-time.After(mcpTermination):
				_ = p.command.Process.Signal(signal)
			}
		}
		p.end = <-ended
	})
	return p.end
}

const (
	maxMessage = 64 << 20 // bytes per line
	maxNotes   = 5        // skipped lines of a connection that are reported
)

// messageLines passes on those lines that are JSON-RPC messages.
type messageLines struct {
	in     *bufio.Reader
	unread []byte // rest of the line that is being passed on
	note   func(string)
	skips  int
	failed error
}

func (m *messageLines) Read(p []byte) (int, error) {
	for len(m.unread) == 0 {
		if m.failed != nil {
			return 0, m.failed
		}
		var line []byte
		if line, m.failed = m.line(); m.failed != nil && m.failed != io.EOF {
			return 0, m.failed
		}
		m.unread = m.message(line)
	}
	n := copy(p, m.unread)
	m.unread = m.unread[n:]
	return n, nil
}

// line returns the next line, or the rest of the input at its end.
func (m *messageLines) line() (line []byte, err error) {
	for {
		part, err := m.in.ReadSlice('\n')
		if line = append(line, part...); len(line) > maxMessage {
			return nil, fmt.Errorf("a message of more than %d bytes", maxMessage)
		}
		if err != bufio.ErrBufferFull {
			return line, err
		}
	}
}

// answersNothing reports whether a line is an answer without an id. Some servers send one if they do not know a notification, and the SDK
// would then end the session.
func answersNothing(line []byte) bool {
	var answer struct{ ID, Method any }
	return json.Unmarshal(line, &answer) == nil && answer.ID == nil && answer.Method == nil
}

// message returns the message in a line, with its line end, or nil if the line has none. It skips text before a message
// on its line.
func (m *messageLines) message(line []byte) []byte {
	text := bytes.TrimSpace(bytes.TrimPrefix(line, []byte("\ufeff")))
	if len(text) == 0 {
		return nil
	}
	isMessage := func(text []byte) bool {
		return (text[0] == '{' || text[0] == '[') && bytes.Contains(text, []byte(`"jsonrpc"`)) && json.Valid(text) && !answersNothing(text)
	}
	if isMessage(text) {
		return append(losslessResult(matchable(text[:len(text):len(text)])), '\n')
	}
	if answer := unversioned(text); answer != nil {
		return append(answer, '\n')
	}
	at := bytes.Index(text, []byte(`{"jsonrpc"`))
	if at > 0 && isMessage(text[at:]) {
		m.skip(text[:at])
		return append(losslessResult(matchable(text[at:len(text):len(text)])), '\n')
	}
	m.skip(text)
	return nil
}

// unversioned replaces an answer without the protocol's version by an error answer to the same request. The SDK would drop
// the original line, and the request would wait for its time-out. unversioned returns nil for other lines.
func unversioned(line []byte) []byte {
	var answer struct {
		JSONRPC, ID, Result, Error json.RawMessage
	}
	if line[0] != '{' || json.Unmarshal(line, &answer) != nil || answer.JSONRPC != nil || answer.ID == nil || answer.Result == nil && answer.Error == nil {
		return nil
	}
	what := fmt.Sprintf(`the server's answer is not JSON-RPC 2.0, because it lacks "jsonrpc": "2.0": %s`, quoted(line))
	return matchable(encoded(map[string]any{"jsonrpc": "2.0", "id": answer.ID, "error": map[string]any{"code": jsonrpc.CodeInternalError, "message": what}}))
}

// quotedID matches the id of a message as a string of digits.
var quotedID = regexp.MustCompile(`"id"\s*:\s*"\d{1,15}"`)

// matchable converts the id of an answer to a number, as in our requests, if the server sent the number as a string. As in the
// Python SDK, such an answer belongs to the request with that number. matchable returns other messages unchanged.
func matchable(message []byte) []byte {
	var fields map[string]json.RawMessage
	if !quotedID.Match(message) || json.Unmarshal(message, &fields) != nil || fields["method"] != nil {
		return message
	}
	var id string
	if json.Unmarshal(fields["id"], &id) != nil || strings.Trim(id, "0123456789") != "" || id == "" {
		return message
	}
	fields["id"] = json.RawMessage(strings.TrimLeft(id[:len(id)-1], "0") + id[len(id)-1:])
	return encoded(fields)
}

// quoted returns the beginning of a line, for a message.
func quoted(line []byte) []byte {
	const maxQuoted = 200
	return bytes.ToValidUTF8(line[:min(len(line), maxQuoted)], nil)
}

func (m *messageLines) skip(text []byte) {
	if m.skips++; m.note != nil && m.skips <= maxNotes {
		m.note(string(quoted(text)))
	}
}
