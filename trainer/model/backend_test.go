//go:build !cuda

package model

import (
	"strings"
	"testing"
)

func TestBuildWithoutCUDARefusesGPUs(t *testing.T) {
	if err := usable("cuda:1", true); err == nil || !strings.Contains(err.Error(), `"cuda:1"`) || !strings.Contains(err.Error(), "CUDA=1") {
		t.Errorf("got %v", err)
	}
	if err := usable("cpu", false); err != nil {
		t.Error(err)
	}
}
