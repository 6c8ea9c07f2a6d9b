package torch

// #include "mgrpo_torch.h"
import "C"

import "unsafe"

// Graph is captured work of a GPU that is launched as a whole: a CUDA graph.
type Graph struct {
	dev    *Device
	handle unsafe.Pointer
}

// Capture runs f twice, to warm up and to capture it, and returns the work of the second run as a graph. Both runs must launch the same
// work on tensors that stay at their addresses, and must not wait for it. Tensors that f makes and keeps can be read after a Replay,
// while the graph lives. Work that fails or cannot be captured, and any work on a CPU, is an *Error. The device can be used after it.
func (s *Scope) Capture(f func()) (*Graph, error) {
	const op = "capture"
	s.current(op)
	r := C.mgt_graph_open(s.dev.native)
	if r.error != nil {
		return nil, newError(op, message(r.error))
	}
	g := &Graph{s.dev, r.value}
	err := g.capture(op, f)
	switch text := message(C.mgt_graph_close(s.dev.native, g.handle)); {
	case err != nil && text == "":
		g.Drop()
	case err == nil && text != "":
		err = newError(op, text) // LibTorch may still use a graph whose capture it could not end: the handle is not freed
	}
	if err != nil {
		return nil, err
	}
	return g, nil
}

func (g *Graph) capture(op string, f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			failed, ok := p.(*Error)
			if !ok {
				C.mgt_graph_close(g.dev.native, g.handle) // the process keeps it until it ends
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

// Replay launches the captured work again, after all work that was launched before.
func (g *Graph) Replay() { must("replay", C.mgt_graph_replay(g.dev.native, g.handle)) }

// Drop frees the graph and the memory of its intermediate results.
func (g *Graph) Drop() { must("drop graph", C.mgt_graph_drop(g.dev.native, g.handle)) }
