package launch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// frameKind is the first byte of a frame. The length of the content follows, in four little-endian bytes, and then the
// content.
type frameKind byte

const (
	orderFrame    frameKind = 'o' // JSON of an Order
	sequenceFrame frameKind = 's' // gob of a sequence of the preceding order
	replyFrame    frameKind = 'r' // JSON of a Reply
	aliveFrame    frameKind = 'a' // empty: a heartbeat
	requestFrame  frameKind = 'q' // gob of a request for a turn
	cancelFrame   frameKind = 'c' // the number of a request whose turn must end
	turnFrame     frameKind = 't' // gob of the answer to a request

	// Only between machines:
	handshakeFrame frameKind = 'h' // JSON of a handshake
	controlFrame   frameKind = 'w' // JSON of a control message to a machine; orders follow after the last one
	stopFrame      frameKind = 'x' // empty: the machine was asked to stop the run
	endedFrame     frameKind = 'e' // JSON of an exitReport; the last frame
)

// longest returns the largest size in bytes of the content of a frame of this kind. An order contains a whole configuration.
// A sequence or a turn has at most as many tokens as a model's context. For a mixture of experts, each token also has the
// numbers of its experts, some hundred bytes.
func (k frameKind) longest() uint32 {
	switch k {
	case orderFrame:
		return 16 << 20
	case sequenceFrame, turnFrame:
		return 1 << 30
	case requestFrame:
		return 64 << 20
	case replyFrame:
		return 1 << 20
	case handshakeFrame, controlFrame, endedFrame:
		return 64 << 10
	case cancelFrame:
		return 8
	}
	return 0
}

const frameHeader = 5

// frame returns the bytes of a frame.
func frame(kind frameKind, content []byte) ([]byte, error) {
	if uint64(len(content)) > uint64(kind.longest()) {
		return nil, fmt.Errorf("launch: a frame of kind %q has %d bytes, more than %d", kind, len(content), kind.longest())
	}
	out := make([]byte, frameHeader, frameHeader+len(content))
	out[0] = byte(kind)
	binary.LittleEndian.PutUint32(out[1:], uint32(len(content)))
	return append(out, content...), nil
}

// readFrame reads a frame of one of the kinds. It allocates no more than has arrived. The error is io.EOF if the other
// end was closed between two frames.
func readFrame(r io.Reader, kinds ...frameKind) (frameKind, []byte, error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	kind, length := frameKind(header[0]), binary.LittleEndian.Uint32(header[1:])
	if !slices.Contains(kinds, kind) {
		return 0, nil, fmt.Errorf("launch: a frame of kind %q, expected one of %q", kind, kinds)
	}
	if length > kind.longest() {
		return 0, nil, fmt.Errorf("launch: a frame of kind %q announces %d bytes, more than %d", kind, length, kind.longest())
	}
	var content bytes.Buffer
	if _, err := io.CopyN(&content, r, int64(length)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return kind, content.Bytes(), nil
}
