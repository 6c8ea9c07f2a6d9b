package main

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestNamesOfFailpointEnvironment checks that the program reads the variables that the harness sets.
func TestNamesOfFailpointEnvironment(t *testing.T) {
	source, err := os.ReadFile("../../trainer/internal/failpoint/failpoint.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{killEnv, pointsLogEnv} {
		if !strings.Contains(string(source), "= "+strconv.Quote(name)) {
			t.Errorf("the package failpoint has no constant %q", name)
		}
	}
}
