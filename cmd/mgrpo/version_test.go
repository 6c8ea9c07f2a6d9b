package main

import (
	"bytes"
	"runtime"
	"strings"
	"testing"
)

func TestPrintVersion(t *testing.T) {
	var out bytes.Buffer
	if err := printVersion(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"mgrpo     " + version, "LibTorch  2.11.0", runtime.Version(), "CPU ", "CUDA "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}
