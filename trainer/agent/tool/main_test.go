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
	// bleve keeps a pool of analysers from its init on.
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent())
}

// arg makes the arguments of a tool with one string argument.
func arg(t testing.TB, name, value string) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(map[string]string{name: value})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// callText calls a tool and gives its answer, an error's text after "error: ".
func callText(t testing.TB, tool Tool, name, value string) string {
	t.Helper()
	out, err := tool.Call(t.Context(), arg(t, name, value))
	if err != nil {
		return "error: " + err.Error()
	}
	return out
}
