package archive

import (
	"context"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// agreement publishes a worker's part of each checkpoint, and checks that all workers have the same manifest.
type agreement struct {
	member      *store.Member
	agent       string   // the worker's agent
	team        []string // all agents
	checkpoints Checkpoints
}

// share publishes this worker's files of a version, and returns the files of all workers.
func (a agreement) share(ctx context.Context, version int64, files AgentFiles) ([]AgentFiles, error) {
	if err := a.member.Checkpoints.PublishPart(ctx, version, partOf(files)); err != nil {
		return nil, err
	}
	parts, err := a.member.Checkpoints.Parts(ctx, version)
	if err != nil {
		return nil, err
	}
	var all []AgentFiles
	for _, name := range a.team {
		all = append(all, filesOf(name, parts[name]))
	}
	return all, nil
}

// confirm publishes the digest of a version's manifest.
func (a agreement) confirm(ctx context.Context, version int64) error {
	m, err := readManifest(a.checkpoints.StepDir(version)) // its digest does not include the results in results.json
	if err != nil {
		return fmt.Errorf("checkpoint: %s: %w", a.checkpoints.StepDir(version), err)
	}
	return a.member.Checkpoints.PublishManifest(ctx, version, m.Digest)
}

// complete waits until all workers have the manifest of a version. A worker that took over a place may have another
// manifest. Then the version has no checkpoint, and the team goes back to a checkpoint that all workers have.
func (a agreement) complete(ctx context.Context, version int64) error {
	if err := a.confirm(ctx, version); err != nil {
		return err
	}
	digests, err := a.member.Checkpoints.Manifests(ctx, version)
	if err != nil {
		return err
	}
	for _, name := range a.team {
		if digests[name] != digests[a.agent] {
			return &store.ConflictError{What: fmt.Sprintf("the manifest of version %d", version),
				Why: fmt.Sprintf("the worker of %s and the worker of %s have different manifests", name, a.agent)}
		}
	}
	return nil
}

// partOf returns the description of a worker's files that the worker publishes.
func partOf(p AgentFiles) store.Part {
	return store.Part{CPUFeatures: p.CPUFeatures, LedgerSize: p.Ledger.Size, LedgerSHA256: p.Ledger.SHA256, Files: p.Files, Endpoint: p.Endpoint}
}

// filesOf returns an agent's files as its worker published them.
func filesOf(agent string, p store.Part) AgentFiles {
	return AgentFiles{Name: agent, CPUFeatures: p.CPUFeatures, Files: p.Files, Endpoint: p.Endpoint,
		Ledger: LedgerMark{Size: p.LedgerSize, SHA256: p.LedgerSHA256}}
}
