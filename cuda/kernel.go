//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"gorgonia.org/cu"
)

// Kernel is a function of a module, which is a file of compiled CUDA code, on one GPU.
type Kernel struct {
	index    int
	gpu      cu.Device
	module   cu.Module
	function cu.Function
}

// LoadKernel loads a file that nvcc compiled (a cubin, a fatbin or PTX) on GPU index, and finds one of its functions. It keeps the primary
// context until Close, because the module belongs to it.
func LoadKernel(index int, file, function string) (*Kernel, error) {
	gpu, _, err := retain(index)
	if err != nil {
		return nil, err
	}
	k := &Kernel{index: index, gpu: gpu}
	err = onDevice(index, func() (err error) {
		if k.module, err = cu.Load(file); err != nil {
			return fmt.Errorf("module %s: %w", file, err)
		}
		if k.function, err = k.module.Function(function); err != nil {
			return errors.Join(fmt.Errorf("module %s: function %s: %w", file, function, err), k.module.Unload())
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, gpu.ReleasePrimaryCtx())
	}
	return k, nil
}

// Launch launches the function on a CUDA stream (nil: the default stream) without waiting for it. Each
// element of parameters holds the bytes of one parameter: gorgonia/cu passes parameters of at most 8 bytes.
func (k *Kernel) Launch(blocks, threads int, stream unsafe.Pointer, parameters ...uint64) error {
	at := make([]unsafe.Pointer, len(parameters))
	for i := range parameters {
		at[i] = unsafe.Pointer(&parameters[i])
	}
	return onDevice(k.index, func() error {
		const y, z, shared = 1, 1, 0
		return k.function.Launch(blocks, y, z, threads, y, z, shared, streamOf(stream), at)
	})
}

// Close unloads the module.
func (k *Kernel) Close() error {
	return errors.Join(onDevice(k.index, k.module.Unload), k.gpu.ReleasePrimaryCtx())
}
