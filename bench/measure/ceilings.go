package measure

import (
	"bytes"
	"context"
	"errors"
	"runtime/debug"
	"sync"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

// Ceilings holds the machine's own rates, measured in the same run as the kernels: GB/s of memory and of the last cache, GFLOP/s of
// LibTorch's matrix product. A GPU's cache is not measured, and its Read equals Copy.
type Ceilings struct {
	Copy       Quantiles `json:"copy_gbps"` // bytes read plus bytes written
	Read       Quantiles `json:"read_gbps"`
	CachedCopy Quantiles `json:"cached_copy_gbps"`
	CachedRead Quantiles `json:"cached_read_gbps"`
	GEMM       Quantiles `json:"gemm_gflops"`      // float32
	GEMMBF16   Quantiles `json:"gemm_bf16_gflops"` // above GEMM if the machine gains from bf16
}

const (
	cachedBytes = 4 << 20 // two of them stay in the last cache
	gemmSize    = 1536

	gpuMemoryBytes = 1 << 30
	gpuGEMMSize    = 8192
)

// MeasureCeilings measures each ceiling of the options' device `samples` times. A quick run measures a GPU's ceilings with
// small sizes, which an emulated GPU can compute.
func MeasureCeilings(ctx context.Context, o Options, samples int) (c Ceilings, err error) {
	dev, err := torch.Open(o.Device, o.Threads)
	if err != nil {
		return c, err
	}
	err = dev.Do(ctx, func(s *torch.Scope) error {
		clock, err := NewClock(s)
		if err != nil {
			return err
		}
		if dev.IsCUDA() {
			bytes, size := gpuMemoryBytes, gpuGEMMSize
			if o.Quick {
				bytes, size = bytes>>8, size>>5
			}
			err = c.gpu(s, clock, int64(bytes), size, samples)
		} else {
			err = c.processor(s, clock, samples)
		}
		return errors.Join(err, clock.Close())
	})
	err = errors.Join(err, dev.Close())
	debug.FreeOSMemory() // otherwise the next case would begin with this memory
	return c, err
}

func (c *Ceilings) gpu(s *torch.Scope, clock Clock, bytes int64, size, samples int) (err error) {
	from, to := s.Zeros(torch.Uint8, bytes), s.Empty(torch.Uint8, bytes)
	if c.Copy, err = rates(clock, Cold, 2*float64(bytes)/1e9, samples, func() { to.CopyFrom(from) }); err != nil {
		return err
	}
	c.Read = c.Copy
	if c.GEMM, err = products(s, clock, Cold, torch.Float32, size, samples); err == nil {
		c.GEMMBF16, err = products(s, clock, Cold, torch.BFloat16, size, samples)
	}
	return err
}

func (c *Ceilings) processor(s *torch.Scope, clock Clock, samples int) (err error) {
	memoryBytes := int(max(256<<20, evictedBytes())) // far larger than a cache
	// Memory that was never written is one page of zeros, which stays in the cache.
	a, b := bytes.Repeat([]byte{1}, memoryBytes), make([]byte, memoryBytes)
	threads := s.Device().Threads()
	copying := func(n int) { Share(n, threads, func(i, j int) { copy(b[i:j], a[i:j]) }) }
	// There is no 0 in it, so it reads everything.
	reading := func(n int) { Share(n, threads, func(i, j int) { bytes.IndexByte(a[i:j], 0) }) }
	for _, m := range []struct {
		into  *Quantiles
		bytes int
		work  func(bytes int)
		ways  int
	}{
		{&c.Copy, memoryBytes, copying, 2}, {&c.Read, memoryBytes, reading, 1},
		{&c.CachedCopy, cachedBytes, copying, 2}, {&c.CachedRead, cachedBytes, reading, 1},
	} {
		inner := memoryBytes / m.bytes // small buffers are read several times, to hide the start of threads
		*m.into, err = rates(clock, Hot, float64(inner*m.ways*m.bytes)/1e9, samples, func() {
			for range inner {
				m.work(m.bytes)
			}
		})
		if err != nil {
			return err
		}
	}
	if c.GEMM, err = products(s, clock, Hot, torch.Float32, gemmSize, samples); err == nil {
		c.GEMMBF16, err = products(s, clock, Hot, torch.BFloat16, gemmSize/2, min(samples, 3)) // slow without bf16 instructions
	}
	return err
}

// products returns the rate of square products in GFLOP/s. The numbers differ, because a GPU is faster if all are equal.
func products(s *torch.Scope, clock Clock, cache Cache, dtype torch.DType, size, samples int) (q Quantiles, err error) {
	s.Scoped(func() {
		n := int64(size)
		values := make([]float32, n*n)
		Uniform(values, 1, 1)
		x := s.FromFloat32(values, n, n).To(dtype)
		q, err = rates(clock, cache, 2*float64(n)*float64(n)*float64(n)/1e9, samples, func() { s.Scoped(func() { x.MatMul(x) }) })
	})
	return q, err
}

// rates repeats work and returns the quantiles of amount per second. On a GPU each repetition begins with a cold cache, as its cases do.
func rates(clock Clock, cache Cache, amount float64, samples int, work func()) (Quantiles, error) {
	work()
	per := make([]float64, samples)
	for i := range per {
		if cache == Cold {
			clock.Evict()
		}
		r, err := clock.Time(cache, func() error { work(); return nil })
		if err != nil {
			return Quantiles{}, err
		}
		per[i] = amount / r.seconds
	}
	return quantiles(per), nil
}

// Share splits [0, n) among threads, and calls work for each part at once.
func Share(n, threads int, work func(from, to int)) {
	var all sync.WaitGroup
	for t := range threads {
		all.Go(func() { work(t*n/threads, (t+1)*n/threads) })
	}
	all.Wait()
}
