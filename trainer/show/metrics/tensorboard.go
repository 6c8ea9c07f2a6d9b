package metrics

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// TensorBoard writes each record as TensorBoard events. Each agent has its own folder, so TensorBoard draws the agents as
// runs in the same charts. Tags are KIND/NAME.
type TensorBoard struct {
	dir   string
	mu    sync.Mutex
	files map[string]*os.File // by agent
	err   error               // the first failure; nothing is written after it
}

// NewTensorBoard returns the writer for a run's folder. Events go to tensorboard/AGENT. The first record creates the
// files.
func NewTensorBoard(dir string) *TensorBoard {
	return &TensorBoard{dir: filepath.Join(dir, "tensorboard"), files: map[string]*os.File{}}
}

// Progress does nothing: progress is not written as an event.
func (*TensorBoard) Progress(Progress) {}

// Note does nothing: notes are not written as events.
func (*TensorBoard) Note(Note) {}

// Report writes a record as one event.
func (t *TensorBoard) Report(r Record) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil { // a frame may be half written
		return
	}
	f, err := t.file(r, now)
	if err == nil {
		_, err = f.Write(frame(event{at: now, step: r.Step, summary: summaryOf(r)}.encode()))
	}
	t.err = err
}

// Close closes the files and returns the first write error.
func (t *TensorBoard) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.files {
		t.err = errors.Join(t.err, f.Close())
	}
	clear(t.files)
	if t.err != nil {
		return fmt.Errorf("metrics: TensorBoard events: %w", t.err)
	}
	return nil
}

// file returns the agent's event file. Each process starts a new file, with the format's version and a session start at
// its first step. TensorBoard then drops events of that step and later steps from older files, which a resumed run
// replaces.
func (t *TensorBoard) file(r Record, now time.Time) (*os.File, error) {
	if f := t.files[r.Agent]; f != nil {
		return f, nil
	}
	dir := filepath.Join(t.dir, cmp.Or(r.Agent, "team"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	name := fmt.Sprintf("events.out.tfevents.%d.%s.%d", now.UnixNano(), host, os.Getpid())
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	t.files[r.Agent] = f
	version := event{at: now, version: "brain.Event:2"}
	session := event{at: now, step: r.Step, starts: true}
	_, err = f.Write(append(frame(version.encode()), frame(session.encode())...))
	return f, err
}

// event is the part of tensorflow.Event that is used here (tensorflow/core/util/event.proto).
type event struct {
	at      time.Time
	step    int64
	version string
	summary []byte // tensorflow.Summary
	starts  bool   // session_log.status START
}

func (e event) encode() []byte {
	var b []byte
	b = appendDouble(b, 1, float64(e.at.Unix())+float64(e.at.Nanosecond())/1e9)
	if e.step != 0 {
		b = appendVarint(b, 2, uint64(e.step))
	}
	if e.version != "" {
		b = appendBytes(b, 3, []byte(e.version))
	}
	if e.summary != nil {
		b = appendBytes(b, 5, e.summary)
	}
	if e.starts {
		b = appendBytes(b, 7, appendVarint(nil, 1, 1))
	}
	return b
}

// summaryOf encodes a tensorflow.Summary: a scalar for each value and tool count, and a histogram for each other count.
func summaryOf(r Record) []byte {
	summary := []byte{}
	scalar := func(name string, v float64) {
		value := appendBytes(nil, 1, []byte(r.Kind+"/"+name))
		value = protowire.AppendTag(value, 2, protowire.Fixed32Type)
		value = protowire.AppendFixed32(value, math.Float32bits(float32(v)))
		summary = appendBytes(summary, 1, value)
	}
	for _, name := range sortedKeys(r.Values) {
		scalar(name, r.Values[name])
	}
	for _, name := range sortedKeys(r.Counts) {
		if ByTool.has(name) {
			for _, tool := range sortedKeys(r.Counts[name]) {
				scalar(name+"/"+tool, float64(r.Counts[name][tool]))
			}
			continue
		}
		value := appendBytes(nil, 1, []byte(r.Kind+"/"+name))
		value = appendBytes(value, 5, histogram(r.Counts[name]))
		summary = appendBytes(summary, 1, value)
	}
	return summary
}

// histogram encodes a tensorflow.HistogramProto with a bucket for each integer from the lowest to the highest key.
func histogram(counts map[string]int64) []byte {
	keys, byKey := Integers(counts)
	if len(keys) == 0 {
		return []byte{}
	}
	var n, sum, squares float64
	var limits, buckets []byte
	lowest, highest := keys[0], keys[len(keys)-1]
	at := lowest - 1 // an empty bucket ends at the start of the first bucket
	for _, k := range keys {
		if k > at+1 || k == lowest { // integers between two keys have count 0
			limits, buckets = appendFixed(limits, float64(k)-0.5), appendFixed(buckets, 0)
		}
		c := float64(byKey[k])
		limits, buckets = appendFixed(limits, float64(k)+0.5), appendFixed(buckets, c)
		n, sum, squares, at = n+c, sum+c*float64(k), squares+c*float64(k)*float64(k), k
	}
	var b []byte
	for field, v := range []float64{float64(lowest), float64(highest), n, sum, squares} {
		if v != 0 { // proto3 omits zeros
			b = appendDouble(b, protowire.Number(field+1), v)
		}
	}
	return appendBytes(appendBytes(b, 6, limits), 7, buckets)
}

// Integers returns the integer keys of a histogram in order, and the counts by key. Other keys are omitted.
func Integers(counts map[string]int64) (keys []int64, byKey map[int64]int64) {
	byKey = map[int64]int64{}
	for text, c := range counts {
		if k, err := strconv.ParseInt(text, 10, 64); err == nil {
			byKey[k] += c
		}
	}
	return sortedKeys(byKey), byKey
}

func appendDouble(b []byte, field protowire.Number, v float64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), math.Float64bits(v))
}

func appendVarint(b []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}

func appendFixed(b []byte, v float64) []byte {
	return protowire.AppendFixed64(b, math.Float64bits(v))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frame encodes a TFRecord: length, its checksum, the data, their checksum.
func frame(data []byte) []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, len(data)+16), uint64(len(data)))
	b = binary.LittleEndian.AppendUint32(b, masked(b))
	b = append(b, data...)
	return binary.LittleEndian.AppendUint32(b, masked(data))
}

// masked returns TensorFlow's masked CRC-32C, which is safe for data that contain CRCs.
func masked(data []byte) uint32 {
	crc := crc32.Checksum(data, castagnoli)
	return (crc>>15 | crc<<17) + 0xa282ead8
}

func sortedKeys[K int64 | string, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
