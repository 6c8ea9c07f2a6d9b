package mcp

import (
	"bufio"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
)

// TestMessageLines: a server's messages are passed on, and all its other output is reported.
func TestMessageLines(t *testing.T) {
	one, two := `{"jsonrpc":"2.0","id":1,"result":{}}`, `{"result": {}, "id": 2, "jsonrpc": "2.0"}`
	for text, want := range map[string][]string{
		one + "\n" + two + "\n": nil, one + "\r\n\r\n" + two: nil, "\ufeff" + one + "\n" + two + "\n": nil,
		"Weather MCP server running on stdio\n" + one + "\nnoise\n" + two + "\n":               {"Weather MCP server running on stdio", "noise"},
		"Loading... " + one + "\n" + two + "\n":                                                {"Loading... "},
		one + "\n" + `{"jsonrpc":"2.0","id":null,"error":{"code":-32601}}` + "\n" + two + "\n": {`{"jsonrpc":"2.0","id":null,"error":{"code":-32601}}`},
		`{"level":"info"}` + "\n42\n" + one + "\n{broken\n" + two + "\nbye":                    {`{"level":"info"}`, "42", "{broken", "bye"},
	} {
		var notes []string
		lines := &messageLines{in: bufio.NewReaderSize(strings.NewReader(text), 16), note: func(s string) { notes = append(notes, s) }}
		got, err := io.ReadAll(lines)
		if err != nil || string(got) != one+"\n"+two+"\n" || !slices.Equal(notes, want) {
			t.Errorf("%q: got messages %q, reports %q, error %v", text, got, notes, err)
		}
	}
}

// TestAnswerMCPMatches: answers that the SDK would not match with their requests are corrected.
func TestAnswerMCPMatches(t *testing.T) {
	for line, want := range map[string]string{
		`{"jsonrpc":"2.0","id":"12","result":{"id":"7"}}`: `{"id":12,"jsonrpc":"2.0","result":{"id":"7"}}`,
		`{"jsonrpc":"2.0","id":"000","result":{}}`:        `{"id":0,"jsonrpc":"2.0","result":{}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"id":"7"}}`:    `{"jsonrpc":"2.0","id":1,"result":{"id":"7"}}`,
		`{"jsonrpc":"2.0","id":"7","method":"ping"}`:      `{"jsonrpc":"2.0","id":"7","method":"ping"}`,
		`{"jsonrpc":"2.0","id":"a7","result":{}}`:         `{"jsonrpc":"2.0","id":"a7","result":{}}`,
		`{"id":3,"result":{}}`:                            `{"error":{"code":-32603,"message":"the server's answer is not JSON-RPC 2.0, because it lacks \"jsonrpc\": \"2.0\": {\"id\":3,\"result\":{}}"},"id":3,"jsonrpc":"2.0"}`,
		`{"id":"3","error":{"code":1}}`:                   `{"error":{"code":-32603,"message":"the server's answer is not JSON-RPC 2.0, because it lacks \"jsonrpc\": \"2.0\": {\"id\":\"3\",\"error\":{\"code\":1}}"},"id":3,"jsonrpc":"2.0"}`,
		`{"id":3,"level":"info"}`:                         "", `{"result":{}}`: "", `{"id":3,"method":"ping"}`: "", `["id","result"]`: "",
	} {
		lines := &messageLines{in: bufio.NewReader(strings.NewReader(line + "\n"))}
		if got, err := io.ReadAll(lines); err != nil || strings.TrimSuffix(string(got), "\n") != want {
			t.Errorf("%s: got %s, want %s; error %v", line, got, want, err)
		}
	}
}

// TestMCPWithoutVersion: if a server's answers lack the version of the protocol, the call fails at once, and the error names the reason.
func TestMCPWithoutVersion(t *testing.T) {
	cfg := stdioConfig(t)
	cfg.Command = []string{"sh", "-c", `"$0" | sed -u '/Hello/s/"jsonrpc":"2.0",//; s/"id":\([0-9]*\)/"id":"\1"/'`, cfg.Command[0]}
	m, err := Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	tools := m.Tools()
	greet := tools[slices.IndexFunc(tools, func(t tool.Tool) bool { return t.Name() == "greet" })]
	if text, err := greet.Call(t.Context(), []byte(`{"name": "Ada"}`)); err == nil || !strings.Contains(err.Error(), `lacks "jsonrpc": "2.0"`) {
		t.Errorf("%q, %v", text, err)
	}
}

// TestMCPNoise: a server that prints other lines in addition to messages can be used.
func TestMCPNoise(t *testing.T) {
	cfg := stdioConfig(t)
	var notes []string
	cfg.Command = []string{"sh", "-c", "echo 'Weather MCP server'; exec \"$0\"", cfg.Command[0]}
	cfg.Note = func(s string) { notes = append(notes, s) }
	cfg.Prefix, cfg.Only = "weather_", []string{"greet", "fail"}
	m, err := Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if len(notes) != 1 || !strings.Contains(notes[0], `"Weather MCP server"`) {
		t.Errorf("notes %q", notes)
	}
	tools := m.Tools()
	if len(tools) != 2 || tools[0].Name() == tools[1].Name() || !strings.HasPrefix(tools[0].Name(), "weather_") {
		t.Fatalf("%v", tools)
	}
	for _, each := range tools {
		if text, err := each.Call(t.Context(), []byte(`{"name": "Ada"}`)); each.Name() == "weather_greet" && (err != nil || text != "Hello Ada.") {
			t.Errorf("%q, %v", text, err)
		}
	}
	cfg.Only = []string{"greet", "dance"}
	if _, err := Connect(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), `there is no tool "dance"`) {
		t.Errorf("%v", err)
	}
}
