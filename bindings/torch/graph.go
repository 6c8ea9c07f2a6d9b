package torch

// #include "mgrpo_torch.h"
import "C"

import "unsafe"

// Graph is work of a GPU that was recorded once and is launched as a whole: a CUDA graph.
type Graph struct {
	dev    *Device
	handle unsafe.Pointer
}

// Record runs f twice, to warm up and to record, and returns what its second run launched. Both must launch the same
// work, on tensors that stay where they are, and wait for none of it. What f makes and keeps can be read after a Replay,
// as long as the graph lives. On a CPU it is an *Error.
func (s *Scope) Record(f func()) *Graph {
	const op = "record"
	s.current(op)
	r := C.mgt_graph_open(s.dev.native)
	must(op, r.error)
	g, whole := &Graph{s.dev, r.value}, false
	defer func() {
		said := message(C.mgt_graph_close(s.dev.native, g.handle))
		switch {
		case said == "" && !whole: // f panicked, and its panic goes on
			g.Drop()
		case said != "" && whole: // LibTorch may still use a recording that it could not end: the handle is not freed
			fail(op, said)
		}
	}()
	f()
	must(op, C.mgt_graph_capture(s.dev.native, g.handle))
	f()
	whole = true
	return g
}

// Replay launches the recorded work once more, after all work that was launched before.
func (g *Graph) Replay() { must("replay", C.mgt_graph_replay(g.dev.native, g.handle)) }

// Drop frees the graph and the memory of its intermediate results.
func (g *Graph) Drop() { must("drop graph", C.mgt_graph_drop(g.dev.native, g.handle)) }
