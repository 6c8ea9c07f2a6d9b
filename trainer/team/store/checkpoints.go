package store

import (
	"context"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/internal/failpoint"
)

// Checkpoints exchanges descriptions of files, so that all workers make the same checkpoint, each on its own disk.
type Checkpoints struct{ at *place }

// Part describes the files of a checkpoint that one agent's worker has written to its disk.
type Part struct {
	CPUFeatures  string         `json:"cpu_features"`
	LedgerSize   int64          `json:"ledger_size"`   // size in bytes of the agent's ledger up to the checkpoint's version
	LedgerSHA256 string         `json:"ledger_sha256"` // digest of these bytes; "": the ledger is empty
	Files        []durable.File `json:"files"`         // files in the agent's folder

	Endpoint *Endpoint `json:"endpoint,omitempty"` // only of a hosted model, which has no files
}

// Endpoint is the place of a hosted model.
type Endpoint struct {
	URL   string `json:"url"`
	Model string `json:"model"` // the model's name there
}

// PublishPart publishes, once, the member's part of a version's checkpoint.
func (c *Checkpoints) PublishPart(ctx context.Context, version int64, part Part) error {
	defer failpoint.Around("checkpoint.part")()
	return publish(ctx, c.at, partValue, checkpointOf(version), &part)
}

// Parts waits until every agent's worker has published its part of a version's checkpoint.
func (c *Checkpoints) Parts(ctx context.Context, version int64) (map[string]Part, error) {
	return gatherPhase(ctx, c.at.Store, partValue, checkpointOf(version), decode[Part])
}

// PublishManifest publishes, once, the digest of the manifest of a version's checkpoint, a SHA-256 in hexadecimal. The
// member's worker must have the manifest on its disk.
func (c *Checkpoints) PublishManifest(ctx context.Context, version int64, digest string) error {
	defer failpoint.Around("checkpoint.confirm")()
	return publish(ctx, c.at, manifestValue, checkpointOf(version), (*sha256Text)(&digest))
}

// Manifests waits until every agent's worker has published its manifest of a version's checkpoint. It maps agents to
// digests.
func (c *Checkpoints) Manifests(ctx context.Context, version int64) (map[string]string, error) {
	return gatherPhase(ctx, c.at.Store, manifestValue, checkpointOf(version), func(key, text string) (string, error) {
		digest, err := decode[sha256Text](key, text)
		return string(digest), err
	})
}

// Trim deletes the phases up to step. Call it when the results of these phases are in every agent's checkpoint.
func (c *Checkpoints) Trim(ctx context.Context, step int64) error {
	defer failpoint.Around("checkpoint.trim")()
	_, err := c.at.write(ctx, trimScript, fmt.Sprintf("trimming up to %d", step), values{
		"phases": c.at.key("phases"), "step": step, "prefix": c.at.key(""), "agents...": c.at.agents.all()})
	return err
}

// sha256Text is a SHA-256 in hexadecimal.
type sha256Text string

func (d *sha256Text) check() error { return checkDigest(string(*d)) }

func checkDigest(text string) error {
	if sum, err := hex.DecodeString(text); err != nil || len(sum) != 32 {
		return fmt.Errorf("%q is not a SHA-256 in hexadecimal", clip(text))
	}
	return nil
}

// Limits of a part of a checkpoint.
const (
	maxPartFiles = 10_000
	maxPartText  = 4096 // bytes of a path, or of a CPU's features
)

func (p *Part) check() error {
	switch {
	case len(p.CPUFeatures) > maxPartText || !utf8.ValidString(p.CPUFeatures):
		return fmt.Errorf("CPU features of %d bytes", len(p.CPUFeatures))
	case len(p.Files) > maxPartFiles:
		return fmt.Errorf("%d files; a part of a checkpoint has at most %d", len(p.Files), maxPartFiles)
	case p.LedgerSize < 0 || (p.LedgerSize == 0) != (p.LedgerSHA256 == ""):
		return fmt.Errorf("a ledger of %d bytes cannot have the digest %q", p.LedgerSize, clip(p.LedgerSHA256))
	case p.Endpoint != nil && (len(p.Endpoint.URL)+len(p.Endpoint.Model) > maxPartText || !utf8.ValidString(p.Endpoint.URL+p.Endpoint.Model)):
		return fmt.Errorf("an endpoint of %d bytes", len(p.Endpoint.URL)+len(p.Endpoint.Model))
	}
	if p.LedgerSize > 0 {
		if err := checkDigest(p.LedgerSHA256); err != nil {
			return fmt.Errorf("the ledger: %w", err)
		}
	}
	for _, f := range p.Files {
		if !filepath.IsLocal(f.Path) || len(f.Path) > maxPartText || !utf8.ValidString(f.Path) {
			return fmt.Errorf("file %q is outside the agent's folder", clip(f.Path))
		}
		if f.Size < 0 {
			return fmt.Errorf("file %q of %d bytes", clip(f.Path), f.Size)
		}
		if err := checkDigest(f.SHA256); err != nil {
			return fmt.Errorf("file %q: %w", clip(f.Path), err)
		}
	}
	return nil
}
