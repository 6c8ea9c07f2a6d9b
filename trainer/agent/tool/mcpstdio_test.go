package tool

import (
	"bufio"
	"io"
	"slices"
	"strings"
	"testing"
)

// TestMessageLines checks that messages are passed on and that all other output of a server is reported.
func TestMessageLines(t *testing.T) {
	one, two := `{"jsonrpc":"2.0","id":1,"result":{}}`, `{"result": {}, "id": 2, "jsonrpc": "2.0"}`
	for text, want := range map[string][]string{
		one + "\n" + two + "\n": nil, one + "\r\n\r\n" + two: nil, "\ufeff" + one + "\n" + two + "\n": nil,
		"Weather MCP server running on stdio\n" + one + "\nnoise\n" + two + "\n": {"Weather MCP server running on stdio", "noise"},
		"Loading... " + one + "\n" + two + "\n":                                  {"Loading... "},
		`{"level":"info"}` + "\n42\n" + one + "\n{broken\n" + two + "\nbye":      {`{"level":"info"}`, "42", "{broken", "bye"},
	} {
		var told []string
		lines := &messageLines{in: bufio.NewReaderSize(strings.NewReader(text), 16), told: func(s string) { told = append(told, s) }}
		got, err := io.ReadAll(lines)
		if err != nil || string(got) != one+"\n"+two+"\n" || !slices.Equal(told, want) {
			t.Errorf("%q: %q, told %q, %v", text, got, told, err)
		}
	}
}

// TestMCPNoise connects to a server that prints more than messages.
func TestMCPNoise(t *testing.T) {
	cfg := stdioConfig(t)
	var told []string
	cfg.Command = []string{"sh", "-c", "echo 'Weather MCP server'; exec \"$0\"", cfg.Command[0]}
	cfg.Told = func(s string) { told = append(told, s) }
	cfg.Prefix, cfg.Only = "weather_", []string{"greet", "fail"}
	m, err := ConnectMCP(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if len(told) != 1 || !strings.Contains(told[0], `"Weather MCP server"`) {
		t.Errorf("told %q", told)
	}
	tools := m.Tools()
	if len(tools) != 2 || tools[0].Name() == tools[1].Name() || !strings.HasPrefix(tools[0].Name(), "weather_") {
		t.Fatalf("%v", tools)
	}
	for _, tool := range tools {
		if text, err := tool.Call(t.Context(), []byte(`{"name": "Ada"}`)); tool.Name() == "weather_greet" && (err != nil || text != "Hello Ada.") {
			t.Errorf("%q, %v", text, err)
		}
	}
	cfg.Only = []string{"greet", "dance"}
	if _, err := ConnectMCP(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), `there is no tool "dance"`) {
		t.Errorf("%v", err)
	}
}
