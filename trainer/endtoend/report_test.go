package endtoend

import (
	"bytes"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/show/dashboard"
)

// output is a terminal's replacement. It is safe for use by several goroutines.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// address returns the address of the run's server, which TrainAndReport prints; "" before that.
func (o *output) address() string {
	m := regexp.MustCompile(`health and metrics: (http://\S+)`).FindStringSubmatch(o.String())
	if m == nil {
		return ""
	}
	return m[1]
}

// TestTrainAndReport trains with all reports of the command line: the console, the files and the live
// page. The program's own observer receives the same records. Resuming the complete run is not an error.
func TestTrainAndReport(t *testing.T) {
	dir := t.TempDir()
	cfg := load(t, dir, append(slices.Clone(noColdStart), "run.steps=2", "health.address=127.0.0.1:0")...)
	var out output
	var open sync.Once
	own := &recorder{on: func(_, phase string, _ int) {
		if phase == "step-1" {
			open.Do(func() { checkPage(t, out.String()) })
		}
	}}
	if err := toTheEnd(trainer.TrainAndReport(t.Context(), cfg, trainer.TrainOptions{Observer: own}, &out)); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	open.Do(func() { t.Error("step 1 has no progress") })
	if text := out.String(); !strings.Contains(text, "step 2/2") || !strings.Contains(text, "2 steps in ") || strings.Count(text, "\ncheckpoints: ") != 1 {
		t.Errorf("the console has\n%s", text)
	}
	log, err := metrics.Read(cfg.RunDir())
	if err != nil {
		t.Fatal(err)
	}
	if len(log.Records) != len(own.Records) {
		t.Errorf("%d records in the file, %d for the observer", len(log.Records), len(own.Records))
	}
	if !slices.ContainsFunc(log.Notes, func(n metrics.Line) bool { return n.Topic == metrics.TopicEnd }) {
		t.Error("metrics.jsonl does not have the end of the run")
	}
	var again output
	if err := trainer.TrainAndReport(t.Context(), cfg, trainer.TrainOptions{Resume: true}, &again); err != nil {
		t.Error(err)
	}
	if text := again.String(); !strings.Contains(text, "the run is complete") || !strings.Contains(text, "2 steps") {
		t.Errorf("resuming a complete run:\n%s", text)
	}
}

// checkPage checks that the page of a run in progress answers at the address on the console.
func checkPage(t *testing.T, console string) {
	url := regexp.MustCompile(`http://\S+` + dashboard.Path).FindString(console)
	answer, err := http.Get(url)
	if err != nil {
		t.Errorf("%v\n%s", err, console)
		return
	}
	defer answer.Body.Close()
	if page, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK || !bytes.Contains(page, []byte("<html")) {
		t.Errorf("%s: %s\n%s", url, answer.Status, page)
	}
}
