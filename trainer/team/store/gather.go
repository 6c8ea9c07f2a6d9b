package store

import (
	"context"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/internal/failpoint"
)

// report is a value that every agent's worker publishes once in a phase and that all workers gather. The values are in
// the hash kind:PHASE, by agent.
type report struct {
	kind string
	what string // in messages, before the phase's name
}

var (
	trajectoriesReport = report{"trajectories", "the list of its trajectories of"}
	partReport         = report{"part", "its part of"}
	manifestReport     = report{"manifest", "its manifest of"}
)

// PublishTrajectories publishes, once, the ids of the trajectories of a phase that the member's agent can train on. The
// order of ids does not matter.
func (m *Member) PublishTrajectories(ctx context.Context, p Phase, ids []string) error {
	defer failpoint.Around("agree.trajectories")()
	sorted := append(idList{}, ids...)
	slices.Sort(sorted)
	return publish(ctx, m, trajectoriesReport, p, &sorted)
}

// Trajectories waits until every agent has published its trajectories of a phase. It maps agents to sorted ids.
func (s *Store) Trajectories(ctx context.Context, p Phase) (map[string][]string, error) {
	return reports(ctx, s, trajectoriesReport, p, func(key, text string) ([]string, error) { return decode[idList](key, text) })
}

// Part describes the files of a checkpoint that one agent's worker has written to its disk.
type Part struct {
	CPUFeatures  string         `json:"cpu_features"`
	LedgerSize   int64          `json:"ledger_size"`   // size in bytes of the agent's ledger up to the checkpoint's version
	LedgerSHA256 string         `json:"ledger_sha256"` // digest of these bytes; "": the ledger is empty
	Files        []durable.File `json:"files"`         // files in the agent's folder

	Endpoint *Endpoint `json:"endpoint,omitempty"` // place of a hosted model, which has no files; nil: the model is here
}

// Endpoint is the place of a hosted model.
type Endpoint struct {
	URL   string `json:"url"`
	Model string `json:"model"` // the model's name there
}

// PublishPart publishes, once, the member's part of a version's checkpoint.
func (m *Member) PublishPart(ctx context.Context, version int64, part Part) error {
	defer failpoint.Around("checkpoint.part")()
	return publish(ctx, m, partReport, checkpointOf(version), &part)
}

// Parts waits until every agent's worker has published its part of a version's checkpoint.
func (s *Store) Parts(ctx context.Context, version int64) (map[string]Part, error) {
	return reports(ctx, s, partReport, checkpointOf(version), decode[Part])
}

// PublishManifest publishes, once, the digest of the manifest of a version's checkpoint, a SHA-256 in hexadecimal. The
// member's worker must have the manifest on its disk.
func (m *Member) PublishManifest(ctx context.Context, version int64, digest string) error {
	defer failpoint.Around("checkpoint.confirm")()
	return publish(ctx, m, manifestReport, checkpointOf(version), (*sha256Text)(&digest))
}

// Manifests waits until every agent's worker has published its manifest of a version's checkpoint. It maps agents to
// digests.
func (s *Store) Manifests(ctx context.Context, version int64) (map[string]string, error) {
	return reports(ctx, s, manifestReport, checkpointOf(version), func(key, text string) (string, error) {
		digest, err := decode[sha256Text](key, text)
		return string(digest), err
	})
}

// publish writes the member's report of a phase.
func publish(ctx context.Context, m *Member, r report, p Phase, said checked) error {
	return m.writeOnce(ctx, p, r.kind, m.agent, said, m.agent+"'s "+r.kind)
}

// reports waits until every agent has published its report of a phase, and reads the values.
func reports[T any](ctx context.Context, s *Store, r report, p Phase, read func(key, text string) (T, error)) (map[string]T, error) {
	return gather(ctx, s, r.what+" "+p.String(), read, func([]string) {}, r.kind, p.String())
}

// gather waits until a hash has a value of every agent, and reads the values. The hash's name and its topic have the same
// parts. After every read, late is called with the agents whose values are missing.
func gather[T any](ctx context.Context, s *Store, what string, read func(key, text string) (T, error), late func(agents []string),
	hash ...string) (map[string]T, error) {
	out := map[string]T{}
	key := s.key(hash...)
	err := s.wait(ctx, func(ctx context.Context) (bool, error) {
		texts, err := s.rdb.HGetAll(ctx, key).Result()
		if err != nil {
			return false, err
		}
		for _, agent := range s.allAgents() {
			text, there := texts[agent]
			if !there {
				continue
			}
			if out[agent], err = read(key+" "+agent, text); err != nil {
				return false, err
			}
		}
		missing := lacking(s.allAgents(), out)
		if len(missing) > 0 {
			late(missing)
		}
		return len(missing) == 0, nil
	}, func() ([]string, string) { return lacking(s.allAgents(), out), what }, strings.Join(hash, "/"))
	return out, err
}

// lacking lists the agents that are not in a map.
func lacking[T any](agents []string, there map[string]T) []string {
	var out []string
	for _, a := range agents {
		if _, ok := there[a]; !ok {
			out = append(out, a)
		}
	}
	return out
}

// idList is the encoded form of the ids of trajectories.
type idList []string

func (l *idList) check() error {
	for i, id := range *l {
		if id == "" || len(id) > maxID+128 {
			return fmt.Errorf("id %d has %d bytes", i, len(id))
		}
	}
	return nil
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
