package metrics

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"
)

var someRecord = Record{Kind: KindStep, Step: 7, Agent: "planner",
	Values: map[string]float64{"loss": -1.0 / 3, "accuracy": 0.625},
	Counts: map[string]map[string]int64{"calls": {"0": 3, "1": 2, "4": 1}},
}

// TestEventsGolden: the file equals, byte for byte, the one that TensorBoard's own writer makes
// of the same events (testdata/events.golden, by tensorboard.summary.writer.record_writer).
func TestEventsGolden(t *testing.T) {
	at := time.Unix(1700000000, 250_000_000)
	var got []byte
	for _, e := range []event{{at: at, version: "brain.Event:2"}, {at: at, step: 7, starts: true}, {at: at, step: 7, summary: summaryOf(someRecord)}} {
		got = append(got, frame(e.encode())...)
	}
	want, err := os.ReadFile("testdata/events.golden")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got\n%x\nwant\n%x", got, want)
	}
}

// TestTensorBoard reads the files back with an independent decoder.
func TestTensorBoard(t *testing.T) {
	dir := t.TempDir()
	w := NewTensorBoard(dir)
	w.Report(someRecord)
	w.Report(Record{Kind: KindEval, Step: 7, Agent: "planner", Values: map[string]float64{"accuracy": 0.5}})
	w.Report(Record{Kind: KindStep, Step: 7, Agent: "solver", Values: map[string]float64{"lr": 1e-6}, Counts: map[string]map[string]int64{ToolErrors: {"search": 3}}})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for agent, want := range map[string]map[string]float32{
		"planner": {"step/loss": -1.0 / 3, "step/accuracy": 0.625, "eval/accuracy": 0.5},
		"solver":  {"step/lr": 1e-6, "step/tool_errors/search": 3},
	} {
		files, err := filepath.Glob(filepath.Join(dir, "tensorboard", agent, "events.out.tfevents.*"))
		if err != nil || len(files) != 1 {
			t.Fatalf("%s: files %v, %v: want one", agent, files, err)
		}
		data, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		got := scalars(t, data)
		if len(got) != len(want) {
			t.Errorf("%s: %v, want %v", agent, got, want)
		}
		for tag, v := range want {
			if got[tag] != v {
				t.Errorf("%s: %s is %v, want %v", agent, tag, got[tag], v)
			}
		}
	}
}

// scalars decodes an event file and returns the scalar values of step 7 by tag.
func scalars(t *testing.T, data []byte) map[string]float32 {
	t.Helper()
	out := map[string]float32{}
	for n := 0; len(data) > 0; n++ {
		size := binary.LittleEndian.Uint64(data)
		if binary.LittleEndian.Uint32(data[8:]) != masked(data[:8]) {
			t.Fatalf("record %d: checksum of the length", n)
		}
		body := data[12 : 12+size]
		if binary.LittleEndian.Uint32(data[12+size:]) != masked(body) {
			t.Fatalf("record %d: checksum of the data", n)
		}
		data = data[16+size:]
		e := fields(t, body)
		if n == 0 && string(e[3][0]) != "brain.Event:2" {
			t.Fatalf("the file begins with %q", e[3])
		}
		if n > 0 && e[2][0][0] != 7 {
			t.Fatalf("record %d is of step %v", n, e[2])
		}
		for _, summary := range e[5] {
			for _, value := range fields(t, summary)[1] {
				v := fields(t, value)
				if v[2] != nil {
					out[string(v[1][0])] = math.Float32frombits(binary.LittleEndian.Uint32(v[2][0]))
				}
			}
		}
	}
	return out
}

// fields splits a protobuf message into raw values by field number.
func fields(t *testing.T, message []byte) map[uint64][][]byte {
	t.Helper()
	out := map[uint64][][]byte{}
	for len(message) > 0 {
		key, n := binary.Uvarint(message)
		message = message[n:]
		size := 0
		switch key & 7 {
		case 0:
			_, size = binary.Uvarint(message)
		case 1:
			size = 8
		case 5:
			size = 4
		case 2:
			length, n := binary.Uvarint(message)
			message, size = message[n:], int(length)
		default:
			t.Fatalf("wire type %d", key&7)
		}
		out[key>>3] = append(out[key>>3], message[:size])
		message = message[size:]
	}
	return out
}
