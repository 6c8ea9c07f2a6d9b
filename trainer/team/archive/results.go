package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
)

const resultsFile = "results.json"

// results is the content of results.json: the results of evaluating a checkpoint. They are not in the manifest, which is
// never changed.
type results struct {
	Manifest string          `json:"manifest"` // digest of the checkpoint's manifest
	Results  json.RawMessage `json:"results"`
	Digest   string          `json:"digest"` // SHA-256 of this file with an empty digest
}

func (r results) encode() (data []byte, err error) {
	if r.Digest, err = digestOf(&r.Digest, &r); err != nil {
		return nil, err
	}
	data, err = json.MarshalIndent(r, "", "  ")
	return append(data, '\n'), err
}

// digestOf returns the SHA-256 of a value's JSON with an empty digest.
func digestOf(digest *string, v any) (string, error) {
	*digest = ""
	plain, err := json.MarshalIndent(v, "", "  ")
	sum := sha256.Sum256(plain)
	return hex.EncodeToString(sum[:]), err
}

// readResults reads the results of a step whose manifest is m. The error is fs.ErrNotExist if there are no results.
func readResults(stepDir string, m Manifest) (results, error) {
	data, err := durable.ReadSmall(filepath.Join(stepDir, resultsFile), maxManifestBytes)
	if err != nil {
		return results{}, err
	}
	var r results
	if err := json.Unmarshal(data, &r); err != nil {
		return results{}, fmt.Errorf("%s is damaged: %w", resultsFile, err)
	}
	if again, err := r.encode(); err != nil || !bytes.Equal(again, data) {
		return results{}, fmt.Errorf("%s is damaged: its digest does not match", resultsFile)
	}
	if r.Manifest != m.Digest {
		return results{}, fmt.Errorf("%s belongs to another manifest", resultsFile)
	}
	return r, nil
}

// Evaluations holds the results of the run's evaluations so far. A checkpoint includes them. All workers compute the same
// results, because all read the same outcomes.
type Evaluations struct {
	HeldOutDigest string `json:"held_out,omitempty"`  // Options.HeldOutDigest of these evaluations; "": unknown
	Evaluated     *int64 `json:"evaluated,omitempty"` // newest version whose evaluation is complete
	Best          *Best  `json:"best,omitempty"`
}

// Best is the version with the highest held-out accuracy, and the earliest if several are equal.
type Best struct {
	Version  int64   `json:"version"`
	Accuracy float64 `json:"accuracy"`
}

// EvaluationsOf returns the evaluations in a checkpoint's manifest. The result is empty if they cannot be read.
func EvaluationsOf(m Manifest) Evaluations {
	var e Evaluations
	if len(m.Results) == 0 || json.Unmarshal(m.Results, &e) != nil {
		return Evaluations{}
	}
	return e
}

// Done reports whether the newest complete evaluation is the evaluation of this version.
func (e Evaluations) Done(version int64) bool { return e.Evaluated != nil && *e.Evaluated == version }

// IsBest reports whether a version is the best so far.
func (e Evaluations) IsBest(version int64) bool { return e.Best != nil && e.Best.Version == version }

func (e Evaluations) encode() json.RawMessage {
	data, _ := json.Marshal(e) // cannot fail: all numbers are finite
	return data
}

// Evaluations returns the results of the run's evaluations so far.
func (a *Archive) Evaluations() Evaluations { return a.evaluations }

// RecordEvaluation adds the result of an evaluation. A version with accuracy 0 or NaN never becomes the best.
func (a *Archive) RecordEvaluation(version int64, accuracy float64) {
	e := &a.evaluations
	e.Evaluated = &version
	if accuracy > 0 && (e.Best == nil || accuracy > e.Best.Accuracy) {
		e.Best = &Best{version, accuracy}
	}
}
