package weights

// Methods of Source that only tests need.

// Names lists the tensors, sorted.
func (s *Source) Names() []string { return s.names }

// Info returns a tensor's shape (rows first) and storage type.
func (s *Source) Info(name string) (shape []int64, dtype DType, ok bool) {
	t, ok := s.tensors[name]
	return t.shape, t.dtype, ok
}

// Bytes returns the stored little-endian bytes of an F32, F16 or BF16 tensor without a copy. The slice is part of the
// mapped file: it is valid until Close, and reading it after the file was cut short kills the process. ok is false for
// tensors that Read must transform.
func (s *Source) Bytes(name string) (data []byte, ok bool) {
	t, ok := s.tensors[name]
	if !ok || t.dtype.Size() == 0 || !t.inOrder() || t.within != nil {
		return nil, false
	}
	return t.data, true
}
