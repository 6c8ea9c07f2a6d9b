package model

import (
	"context"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/checkpoint"
)

// TestLoadPeakMemory: while a checkpoint streams in, anonymous memory grows by little more than the
// weights as they are held.
func TestLoadPeakMemory(t *testing.T) {
	ctx := context.Background()
	cfg := checkpoint.Config{
		Family: checkpoint.Llama, VocabSize: 20000, Hidden: 512, Layers: 4, Heads: 8, KVHeads: 4, HeadDim: 64, FFN: 1536,
		RMSEps: 1e-5, RopeTheta: 1e4, MaxPosition: 64, Tied: true,
	}
	dir := filepath.Join(t.TempDir(), "model")
	err := checkpoint.WriteHF(dir, cfg, checkpoint.ExpectedTensors(cfg), func(_ string, dst []float32) error {
		for i := range dst {
			dst[i] = float32(i%7) * 0.01
		}
		return nil
	}, checkpoint.F32, nil)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := torch.Open("cpu", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	src, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	debug.FreeOSMemory() // what the writer left must not hide what the loader takes
	before := anonymous(t)
	stop, peak := make(chan struct{}), make(chan int64)
	go func() {
		highest := before
		for {
			select {
			case <-stop:
				peak <- highest
				return
			case <-time.After(time.Millisecond):
				highest = max(highest, anonymous(t))
			}
		}
	}()
	m, err := Load(ctx, dev, src, Options{Compute: torch.Float32})
	close(stop)
	highest := <-peak
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(ctx)
	weights := 4 * m.Layout.Numel
	if grown := highest - before; float64(grown) > 1.2*float64(weights) || float64(grown) < 0.9*float64(weights) {
		t.Errorf("anonymous memory grew by %d MB for %d MB of weights", grown>>20, weights>>20)
	}
}

// anonymous is the process's anonymous resident memory in bytes.
func anonymous(t *testing.T) int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("no /proc/self/status: anonymous memory cannot be measured here")
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Skip("no RssAnon in /proc/self/status")
	return 0
}
