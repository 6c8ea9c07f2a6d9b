package kernels

// float has the types that tests run over: the kernels' instantiations for float64 and float32.
type float interface{ float32 | float64 }

func dtypeOf[T float]() DType {
	if _, ok := any(T(0)).(float32); ok {
		return Float32
	}
	return Float64
}

func convert[T, F ~float32 | ~float64](in []F) []T {
	if in == nil {
		return nil
	}
	out := make([]T, len(in))
	for i, v := range in {
		out[i] = T(v)
	}
	return out
}

// tolerances are one instantiation's tolerances, from the README of the goldens.
type tolerances struct {
	name                        string
	loss, gradient, long        float64
	rowValue, rowGradient, head float64
	advantage, groupMean        float64
}

var (
	inFloat64 = tolerances{name: "float64", loss: 1e-12, gradient: 1e-12, long: 1e-11, rowValue: 1e-12, rowGradient: 1e-12,
		head: 1e-11, advantage: 1e-9, groupMean: 1e-12}
	inFloat32 = tolerances{name: "float32", loss: 2e-5, gradient: 2e-5, long: 5e-5, rowValue: 2e-6, rowGradient: 2e-6,
		head: 2e-5, advantage: 1e-5, groupMean: 1e-6}
)
