package arch

// Kind is the purpose of a leaf, which determines its initialisation.
type Kind int

// Kinds of leaves.
const (
	Matrix   Kind = iota // of a linear map, or the embedding: [rows, columns]
	Residual             // a matrix whose product is added to the residual stream
	Norm                 // weight of an RMSNorm
	Bias
	Taps  // weights of a depthwise convolution: [channels, 1, width]
	Scale // weight of an RMSNorm that is stored as it is in all families
	Decay // biases of the decays of a gated delta rule
)

// Tensor is a tensor of a checkpoint: its names and shape in files, and its place in the flat buffer.
type Tensor struct {
	Name   string  // in Hugging Face folders
	Other  string  // in folders that transformers 5 saved with save_original_format=False; "": the same
	GGUF   string  // in GGUF files
	Shape  []int64 // rows first; one dimension for norms and biases
	Offset int64   // in elements, into the flat buffer of all parameters

	// Pairs is HeadDim/2 if the two halves of each head's rows are interleaved in GGUF files, and 0 otherwise.
	Pairs int64

	// GGUFOffset is added to each value in GGUF files: 1 for norms of families whose folders store weights minus 1.
	GGUFOffset float32

	// Tiled is the order of the tensor's rows or columns in GGUF files.
	Tiled Tiling

	// GGUFDecay reports that GGUF files store −e^x in place of each value x.
	GGUFDecay bool

	// Stack is the number of tensors of this shape that GGUF files store as one tensor, and Index is the place of this one.
	// 0: the tensor is stored alone.
	Stack, Index int64

	Fused Fused // the tensor in folders that contains this one and others; the zero value: this one is stored alone
}

// Fused is a tensor [Stack, Rows, columns], or [Stack, Rows] for biases. Folders of transformers 5 may store the tensors of
// all experts in it. An expert's tensor is rows Row, Row+Step, Row+2·Step... of matrix Index.
type Fused struct {
	Name            string // "": none
	Rows, Row, Step int64
	Always          bool // always written in this form
	Transposed      bool // unquantised matrices are [Stack, columns, Rows]
}

// Numel returns the number of elements.
func (t Tensor) Numel() int64 { return numel(t.Shape) }

// GGUFShape returns the shape in GGUF files, rows first, without the dimension of a Stack. There the weights of a convolution are a matrix.
func (t Tensor) GGUFShape() []int64 {
	if len(t.Shape) == 3 {
		return []int64{t.Shape[0], t.Shape[2]}
	}
	return t.Shape
}

// Leaf is one tensor of the forward pass: a contiguous range of the flat buffer. Projections that are always applied to the
// same input (q, k, v; gate, up) form one leaf, so that they are one matrix product. Parts lists the checkpoint's tensors
// in it.
type Leaf struct {
	Name   string // such as layers.3.qkv
	Layer  int    // counted from 1; 0: outside layers
	Kind   Kind
	Shape  []int64 // rows first; one dimension for norms and biases
	Offset int64   // in elements, into the flat buffer
	Parts  []Tensor

	Experts int // number of experts whose matrices are stacked in this leaf; 0: not a leaf of experts
}

// Numel returns the number of elements.
func (l Leaf) Numel() int64 { return numel(l.Shape) }

// Vector reports whether the leaf is not a matrix: its values are multiplied or added element by element.
func (l Leaf) Vector() bool { return len(l.Shape) == 1 || l.Kind == Taps }

func numel(shape []int64) int64 {
	n := int64(1)
	for _, s := range shape {
		n *= s
	}
	return n
}
