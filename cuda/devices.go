//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"runtime"

	"gorgonia.org/cu"
)

// Driver returns the version of the CUDA driver, such as "13.0", or "" without a driver.
func Driver() string {
	v := cu.Version()
	if v <= 0 {
		return ""
	}
	return fmt.Sprintf("%d.%d", v/1000, v%1000/10)
}

// Devices returns the GPUs that the driver offers this process, in its order.
func Devices() ([]Device, error) {
	n, err := cu.NumDevices()
	if err != nil {
		return nil, fmt.Errorf("cuda: count devices: %w", err)
	}
	devices := make([]Device, n)
	for i := range devices {
		if devices[i], err = describe(i); err != nil {
			return nil, fmt.Errorf("cuda: device %d: %w", i, err)
		}
	}
	return devices, nil
}

func describe(index int) (Device, error) {
	gpu, err := cu.GetDevice(index)
	if err != nil {
		return Device{}, err
	}
	d := Device{Index: index}
	if d.Name, err = gpu.Name(); err != nil {
		return Device{}, err
	}
	if d.Memory, err = gpu.TotalMem(); err != nil {
		return Device{}, err
	}
	d.Major, d.Minor, err = gpu.ComputeCapability()
	return d, err
}

// MemoryOf returns the state of the memory of GPU index.
func MemoryOf(index int) (m Memory, err error) {
	err = onDevice(index, func() (err error) {
		m.Free, m.Total, err = cu.MemInfo()
		return err
	})
	return m, err
}

// retain returns GPU index and its primary context, which lives until ReleasePrimaryCtx at least.
func retain(index int) (gpu cu.Device, primary cu.CUContext, err error) {
	if gpu, err = cu.GetDevice(index); err != nil {
		return gpu, primary, fmt.Errorf("cuda: device %d: %w", index, err)
	}
	if primary, err = gpu.RetainPrimaryCtx(); err != nil {
		return gpu, primary, fmt.Errorf("cuda: device %d: context: %w", index, err)
	}
	return gpu, primary, nil
}

// onDevice runs f with the primary context of GPU index as the current one. LibTorch uses that context, too.
func onDevice(index int, f func() error) (err error) {
	runtime.LockOSThread() // a context is current on one thread
	defer runtime.UnlockOSThread()
	gpu, primary, err := retain(index)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gpu.ReleasePrimaryCtx()) }()
	if err := cu.PushCurrentCtx(primary); err != nil {
		return fmt.Errorf("cuda: device %d: context: %w", index, err)
	}
	defer func() {
		_, popped := cu.PopCurrentCtx()
		err = errors.Join(err, popped)
	}()
	if err := f(); err != nil {
		return fmt.Errorf("cuda: device %d: %w", index, err)
	}
	return nil
}
