package arch

// The capabilities of a forward pass on which engines and learners depend. A TorchScript module has none of them.

// Cached reports whether a pass can continue sequences whose earlier rows are in a cache. Otherwise every pass computes whole sequences, or
// a module's step continues them.
func Cached(c Config) bool { return c.Module == nil }

// SharesPrefixes reports whether sequences of a pass that begin alike can share the rows of their common prefix.
func SharesPrefixes(c Config) bool { return c.Module == nil }

// RowIndependent reports whether the bits of a row depend only on the row's sequence on a CPU, and not on the other sequences of a pass.
func RowIndependent(c Config) bool { return c.Module == nil }

// Layered reports whether the forward pass consists of layers of known sizes, which can be
// computed one at a time, recomputed in the backward pass, and divided among ranks.
func Layered(c Config) bool { return c.Module == nil }
