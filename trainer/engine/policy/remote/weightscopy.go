package remote

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
)

// weightsCopy is a copy of the weights for servers.
type weightsCopy struct {
	stamp   string // its name: the folder's, and the version that a server reports
	folder  string
	version int64
	fixed   bool

	logits   trainerLogits  // with these weights
	previous *trainerLogits // with the previous weights; nil: there were none
}

// stampPrefix begins every stamp, so that a server with another trainer's weights is not mistaken for a restarted one.
const stampPrefix = "mgrpo."

// prefix returns the beginning of this agent's stamps. Names of runs and agents have no dots.
func (p *Policy) prefix() string { return stampPrefix + p.opt.Name + ".v" }

// write writes the weights into a new folder. A stamp is used once: the same version may be written again, with other
// weights, after a cold start or when a run goes back.
func (p *Policy) write(ctx context.Context, version int64, before *weightsCopy) (*weightsCopy, error) {
	p.loads++
	w := &weightsCopy{version: version, fixed: p.weights.Frozen(), stamp: fmt.Sprintf("%s%d.%d-%s", p.prefix(), version, p.loads, rand.Text()[:8])}
	w.folder = filepath.Join(p.opt.Folder, w.stamp)
	logits, err := p.weights.Logits(ctx, p.probe.ids, p.probe.ends)
	if err != nil {
		return nil, err
	}
	w.logits = trainerLogits{logits}
	if before != nil {
		was := before.logits // a copy, since a pointer would keep all earlier ones alive
		w.previous = &was
	}
	return w, p.weights.Write(ctx, w.folder)
}

func (w *weightsCopy) remove() error { return durable.OS{}.RemoveAll(w.folder) }

// removeLeftovers creates the folder for weights and removes files of an earlier process of this agent.
func (p *Policy) removeLeftovers() error {
	if err := durable.MkdirAll(durable.OS{}, p.opt.Folder); err != nil {
		return err
	}
	entries, err := os.ReadDir(p.opt.Folder)
	for _, e := range entries {
		if strings.HasPrefix(strings.TrimPrefix(e.Name(), "."), p.prefix()) { // a dot: writing was not finished
			err = errors.Join(err, os.RemoveAll(filepath.Join(p.opt.Folder, e.Name())))
		}
	}
	return err
}
