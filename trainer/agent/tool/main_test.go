package tool

import (
	"encoding/json"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	ServeSandbox()
	switch os.Getenv(mcpServerEnv) {
	case "":
	case "absent":
		os.Exit(1)
	case "results":
		serveMCPResults()
	default:
		serveTestMCP()
	}
	// bleve starts a pool of analysers when the program starts.
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent())
}

// arg returns the JSON arguments of a tool with one string argument.
func arg(t testing.TB, name, value string) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(map[string]string{name: value})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// callText calls a tool and returns its answer, or "error: " and the error's text.
func callText(t testing.TB, tool Tool, name, value string) string {
	t.Helper()
	out, err := tool.Call(t.Context(), arg(t, name, value))
	if err != nil {
		return "error: " + err.Error()
	}
	return out
}
