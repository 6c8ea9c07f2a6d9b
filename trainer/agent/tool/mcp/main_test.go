package mcp

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	switch os.Getenv(mcpServerEnv) {
	case "":
	case "absent":
		os.Exit(1)
	case "results":
		serveMCPResults()
	default:
		serveTestMCP()
	}
	goleak.VerifyTestMain(m)
}
