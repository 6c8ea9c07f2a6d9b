//go:build cuda

package kernels

import "github.com/mgrpo/mgrpo/cuda"

func init() {
	m := NewMemory(CUDA(nil))
	if Put(m, []byte{0}); m.Err() == nil { // the machine has a GPU
		linked = append(linked, CUDA(nil))
	} else if cuda.Required() {
		panic("no GPU, and MGRPO_REQUIRE_GPU is set: " + m.Err().Error())
	}
	m.Free()
}
