package torch

import "fmt"

// DType is the type of a tensor's elements. The numbers are c10::ScalarType's.
type DType int8

// The element types that models, batches and statistics use.
const (
	Uint8    DType = 0
	Int8     DType = 1
	Int16    DType = 2
	Int32    DType = 3
	Int64    DType = 4
	Float16  DType = 5
	Float32  DType = 6
	Float64  DType = 7
	Bool     DType = 11
	BFloat16 DType = 15
)

var dtypes = map[DType]struct {
	size int
	name string
}{
	Uint8: {1, "uint8"}, Int8: {1, "int8"}, Int16: {2, "int16"}, Int32: {4, "int32"}, Int64: {8, "int64"}, Bool: {1, "bool"},
	Float16: {2, "float16"}, BFloat16: {2, "bfloat16"}, Float32: {4, "float32"}, Float64: {8, "float64"},
}

// Size returns the bytes of one element, or 0 for an unlisted type.
func (d DType) Size() int { return dtypes[d].size }

// String returns the type's usual name, such as "bfloat16".
func (d DType) String() string {
	if t, ok := dtypes[d]; ok {
		return t.name
	}
	return fmt.Sprintf("dtype(%d)", int8(d))
}
