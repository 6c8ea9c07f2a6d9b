//go:build cuda

package kernels

func init() {
	m := NewMemory(CUDA(nil))
	if Put(m, []byte{0}); m.Err() == nil { // there is a GPU
		linked = append(linked, CUDA(nil))
	}
	m.Free()
}
