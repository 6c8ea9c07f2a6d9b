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
// as long as the graph lives. The error is an *Error: work that fails or cannot be recorded, and any on a CPU. The device goes on
// as before then.
func (s *Scope) Record(f func()) (*Graph, error) {
	const op = "record"
	s.current(op)
	r := C.mgt_graph_open(s.dev.native)
	if r.error != nil {
		return nil, newError(op, message(r.error))
	}
	g := &Graph{s.dev, r.value}
	err := g.record(op, f)
	switch said := message(C.mgt_graph_close(s.dev.native, g.handle)); {
	case err != nil && said == "":
		g.Drop()
	case err == nil && said != "":
		err = newError(op, said) // LibTorch may still use a recording that it could not end: the handle is not freed
	}
	if err != nil {
		return nil, err
	}
	return g, nil
}

func (g *Graph) record(op string, f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			failed, ok := p.(*Error)
			if !ok {
				C.mgt_graph_close(g.dev.native, g.handle) // and leaves it to the process, which ends
				panic(p)
			}
			err = failed
		}
	}()
	f()
	must(op, C.mgt_graph_capture(g.dev.native, g.handle))
	f()
	return nil
}

// Replay launches the recorded work once more, after all work that was launched before.
func (g *Graph) Replay() { must("replay", C.mgt_graph_replay(g.dev.native, g.handle)) }

// Drop frees the graph and the memory of its intermediate results.
func (g *Graph) Drop() { must("drop graph", C.mgt_graph_drop(g.dev.native, g.handle)) }
