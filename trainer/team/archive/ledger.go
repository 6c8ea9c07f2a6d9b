package archive

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/internal/failpoint"
)

// LedgerLine lists the rollouts of one training step and their use by one agent. It contains no times or other values that
// differ when the step is repeated.
type LedgerLine struct {
	Step     int64           `json:"step"` // counted from 0: the version before the step
	Rollouts []LedgerRollout `json:"rollouts"`
	Updates  int64           `json:"updates"` // number of optimizer updates since the start of the run; 0 for a frozen agent
}

// LedgerRollout is a rollout in a ledger. The agent trained on it, or it was removed for all agents.
type LedgerRollout struct {
	ID      string    `json:"id"`                // QUERY/ROLLOUT
	Trained []float64 `json:"trained,omitzero"`  // weights of this agent's trajectories in the rollout, in the order of issue
	Removed string    `json:"removed,omitempty"` // reason of the removal
}

// LedgerMark describes the first lines of a ledger: their size in bytes and their SHA-256 in hexadecimal. The zero mark
// describes an empty ledger.
type LedgerMark struct {
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty"`
}

// Ledger is an agent's file with one LedgerLine per line, as JSON. A run only appends to it, or cuts it back to a
// checkpoint.
type Ledger struct {
	path   string
	file   durable.WriteFile
	size   int64
	digest hash.Hash // of all bytes of the file
	err    error     // the first error; after it, nothing is written
}

func ledgerPath(dir, agent string) string { return filepath.Join(dir, agent+".jsonl") }

// openLedger opens an agent's ledger in a folder for appending, and creates it if it is missing. The ledger must begin with the
// lines that the mark describes. Later lines belong to steps that will be made again, and are removed. openLedger
// copies the lines of the mark to a new file, and renames it to the ledger's name. A suspended worker that was
// replaced in the meantime still has the old file open. Its later writes go to the old file, which then has no name.
func openLedger(fsys durable.FS, dir, agent string, at LedgerMark) (*Ledger, error) {
	l := &Ledger{path: ledgerPath(dir, agent), size: at.Size}
	fail := func(err error) (*Ledger, error) { return nil, fmt.Errorf("checkpoint: %s: %w", l.path, err) }
	if !agentName.MatchString(agent) {
		return fail(fmt.Errorf("%q is not the name of an agent", agent))
	}
	if err := errors.Join(durable.MkdirAll(fsys, dir), durable.RemovePartial(fsys, l.path)); err != nil {
		return fail(err)
	}
	temporary := durable.PartialName(l.path)
	var err error
	if l.file, err = fsys.Create(temporary); err != nil {
		return fail(err)
	}
	l.digest, err = at.copy(l.path, l.file)
	if err = errors.Join(err, l.file.Sync()); err == nil {
		err = fsys.Rename(temporary, l.path)
	}
	if err != nil {
		return fail(errors.Join(err, l.file.Close(), fsys.RemoveAll(temporary)))
	}
	if err := fsys.SyncDir(dir); err != nil {
		return fail(errors.Join(err, l.file.Close()))
	}
	return l, nil
}

// Append writes a line and syncs it to the disk.
func (l *Ledger) Append(line LedgerLine) error {
	if l.err != nil {
		return l.err
	}
	data, err := json.Marshal(line)
	if err == nil {
		data = append(data, '\n')
		failpoint.Here("commit.ledger.before")
		_, err = l.file.Write(data)
	}
	if err == nil {
		failpoint.Here("commit.ledger.written")
		err = l.file.Sync()
	}
	if err != nil {
		l.err = fmt.Errorf("checkpoint: %s: step %d: %w", l.path, line.Step, err)
		return l.err
	}
	failpoint.Here("commit.ledger.after")
	l.digest.Write(data)
	l.size += int64(len(data))
	return nil
}

// Mark describes all lines of the ledger.
func (l *Ledger) Mark() LedgerMark {
	if l.size == 0 {
		return LedgerMark{}
	}
	return LedgerMark{l.size, hex.EncodeToString(l.digest.Sum(nil))}
}

// Close closes the file.
func (l *Ledger) Close() error { return l.file.Close() }

// copy checks that a file begins with the lines that the mark describes, copies them to a writer, and returns their hash.
func (m LedgerMark) copy(path string, to io.Writer) (hash.Hash, error) {
	digest := sha256.New()
	if m.Size == 0 {
		return digest, nil
	}
	what := "ledger " + filepath.Base(path)
	info, err := os.Stat(path) // before opening: a FIFO would block
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is missing", what)
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", what)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	switch n, err := io.Copy(io.MultiWriter(digest, to), io.LimitReader(file, m.Size)); {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", what, err)
	case n < m.Size:
		return nil, fmt.Errorf("%s has %d bytes, but the manifest requires %d", what, n, m.Size)
	}
	if hex.EncodeToString(digest.Sum(nil)) != m.SHA256 {
		return nil, fmt.Errorf("%s was changed: the SHA-256 of its first %d bytes differs from the manifest", what, m.Size)
	}
	return digest, nil
}
