package launch

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"

	"github.com/mgrpo/mgrpo/trainer/engine/learner"
)

// OrderKind is the kind of an order.
type OrderKind string

const (
	Open            OrderKind = "open"              // load the weights of the agent that Order.Open describes
	Join            OrderKind = "join"              // join the group of ranks, and allocate the buffers for training
	Prepare         OrderKind = "prepare"           // learner.Prepare of a batch, which is kept until the next one
	Update          OrderKind = "update"            // learner.Update of the sequences Indices of that batch
	ColdStartUpdate OrderKind = "cold_start_update" // learner.ColdStartUpdate with a separate batch
	ResetOptimizer  OrderKind = "reset_optimizer"   // State.Reset
	CopyState       OrderKind = "copy_state"        // State.Copy, to rank 0
	Read            OrderKind = "read"              // State.Read of Span, to rank 0
	JoinForward     OrderKind = "join_forward"      // learner.JoinForward: join a forward pass of rank 0
	RestoreMoments  OrderKind = "restore_moments"   // State.RestoreMoments, from rank 0
	RestoreWeights  OrderKind = "restore_weights"   // State.RestoreWeights, from rank 0
	LoadReference   OrderKind = "load_reference"    // load the reference weights of the KL term from Folder
	Sample          OrderKind = "sample"            // open the engine, and answer requests for turns from now on
	DigestWeights   OrderKind = "digest_weights"    // reply with the digest of a frozen agent's weights
	UpdateWeights   OrderKind = "update_weights"    // policy.UpdateWeights to Version
	Release         OrderKind = "release"           // learner.Close
)

// Order is the next action of all ranks. It has the fields of its kind and no others.
type Order struct {
	Kind    OrderKind   `json:"kind"`
	Open    *OpenOrder  `json:"open,omitempty"`
	Group   *Rendezvous `json:"group,omitempty"`   // the group to join
	Batch   int         `json:"batch,omitempty"`   // number of sequences that follow
	Indices []int       `json:"indices,omitempty"` // indices of sequences
	AdamW   *AdamW      `json:"adamw,omitempty"`   // constants of an update
	Span    *Span       `json:"span,omitempty"`    // range of the weights
	Folder  string      `json:"folder,omitempty"`
	Version int64       `json:"version,omitempty"` // of the weights
}

// Span is a range of a flat buffer.
type Span struct {
	From int64 `json:"from"`
	N    int64 `json:"n"`
}

// AdamW holds the constants of an update. Every update carries all of them, so that followers have no settings of their
// own.
type AdamW struct {
	learner.Adam
	LR    float64 `json:"lr"`
	Steps int64   `json:"steps"` // number of updates made before
}

// OpenOrder describes a follower's model.
type OpenOrder struct {
	Config         []byte `json:"config"` // a configuration in which the agent has only the follower's device, and paths are absolute
	Agent          string `json:"agent"`
	Weights        string `json:"weights"`  // folder of the checkpoint to continue from; "": the weights that the configuration names
	Learns         bool   `json:"learns"`   // the rank holds a share of the trained weights; rank 0 sends it a checkpoint's fp32 weights
	Gathered       bool   `json:"gathered"` // no rank holds complete layers
	Rank           int    `json:"rank"`     // counted from 1
	Size           int    `json:"size"`
	SharingThreads int    `json:"sharing_threads"` // number of processes that share the threads of the follower's machine
}

// Rendezvous describes where ranks meet.
type Rendezvous struct {
	Address string `json:"rendezvous"` // HOST:PORT
	Name    string `json:"name"`       // a secret of this group
	Bind    string `json:"bind"`       // the address of the rank's machine for the others
}

// Reply is a follower's reply to an order after executing it.
type Reply struct {
	Error       string `json:"error,omitempty"`         // reason why the order failed
	OutOfMemory bool   `json:"out_of_memory,omitempty"` // an allocation failed
	OtherLost   bool   `json:"other_lost,omitempty"`    // another rank was lost
	Missing     bool   `json:"missing,omitempty"`       // a file does not exist
	Digest      uint32 `json:"digest,omitempty"`        // digest of the weights
}

// shortened returns the reply with a long error cut.
func (r Reply) shortened() Reply {
	const maxError = 4 << 10
	r.Error = r.Error[:min(len(r.Error), maxError)]
	return r
}

// Limits of an order's values.
const (
	maxBatch = 1 << 24 // sequences of a batch
	maxRanks = 1 << 10
)

// decodeOrder reads an order and refuses incomplete or invalid ones.
func decodeOrder(content []byte) (o Order, err error) {
	if err := decodeJSON(content, &o); err != nil {
		return o, err
	}
	return o, o.check()
}

// check refuses orders that rank 0 never sends. It does not have access to the batch to which an order refers.
func (o Order) check() error {
	var want Order // the fields that an order of its kind has
	switch o.Kind {
	case Open:
		want.Open = o.Open
	case Join:
		want.Group = o.Group
	case Prepare:
		want.Batch = o.Batch
	case Update:
		want.Indices, want.AdamW = o.Indices, o.AdamW
	case ColdStartUpdate:
		want.Batch, want.AdamW = o.Batch, o.AdamW
	case Read:
		want.Span = o.Span
	case LoadReference:
		want.Folder = o.Folder
	case UpdateWeights:
		want.Version = o.Version
	case ResetOptimizer, CopyState, JoinForward, RestoreMoments, RestoreWeights, Sample, DigestWeights, Release:
	default:
		return fmt.Errorf("launch: unknown order %.20q", o.Kind)
	}
	open, adam := o.Open, o.AdamW
	switch {
	case open != want.Open, o.Group != want.Group, o.Batch != want.Batch, len(o.Indices) != len(want.Indices), adam != want.AdamW, o.Span != want.Span,
		o.Folder != want.Folder, o.Version != want.Version:
		return fmt.Errorf("launch: an order to %s has a field of another kind", o.Kind)
	case o.Kind == Open && (open == nil || open.Agent == "" || open.Rank < 1 || open.Rank >= open.Size || open.Size > maxRanks || open.SharingThreads < 1):
		return fmt.Errorf("launch: an order to %s does not have a complete description of the model", o.Kind)
	case o.Kind == Join && (o.Group == nil || o.Group.Name == "" || !isAddress(o.Group.Bind)):
		return fmt.Errorf("launch: an order to %s does not have a complete group", o.Kind)
	case (o.Kind == Update || o.Kind == ColdStartUpdate) && (adam == nil || math.IsNaN(adam.LR) || adam.LR < 0 || adam.Steps < 0):
		return fmt.Errorf("launch: an order to %s does not have a learning rate or count", o.Kind)
	case o.Kind == Read && (o.Span == nil || o.Span.From < 0 || o.Span.N < 0 || o.Span.N > math.MaxInt64-o.Span.From):
		return fmt.Errorf("launch: an order to %s does not have a valid range of weights", o.Kind)
	case o.Version < 0:
		return fmt.Errorf("launch: an order to %s version %d", o.Kind, o.Version)
	case o.Batch < 0 || max(o.Batch, len(o.Indices)) > maxBatch:
		return fmt.Errorf("launch: an order to %s has an invalid number of sequences: %d", o.Kind, cmp.Or(o.Batch, len(o.Indices)))
	}
	return nil
}

// isAddress reports whether a text is the address of one machine.
func isAddress(text string) bool {
	at, err := netip.ParseAddr(text)
	return err == nil && !at.IsUnspecified() && !at.IsMulticast() && at.Zone() == ""
}

// decodeJSON reads one value and refuses unknown fields.
func decodeJSON(content []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("launch: more than one value in a frame")
	}
	return nil
}

// encodeOrder returns the frames of an order and its batch.
func encodeOrder(o Order, batch []*learner.Sequence) ([][]byte, error) {
	o.Batch = len(batch)
	content, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("launch: an order to %s: %w", o.Kind, err)
	}
	first, err := frame(orderFrame, content)
	frames := [][]byte{first}
	for i := 0; i < len(batch) && err == nil; i++ {
		if content, err = encodeSequence(batch[i]); err == nil {
			var next []byte
			next, err = frame(sequenceFrame, content)
			frames = append(frames, next)
		}
	}
	return frames, err
}
