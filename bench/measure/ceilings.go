package measure

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

// Ceilings are what the machine itself can do, measured in the same run as the kernels: GB/s of memory and of the
// last cache, GFLOP/s of LibTorch's matrix product.
type Ceilings struct {
	Copy       Quantiles `json:"copy_gbps"` // bytes read plus bytes written
	Read       Quantiles `json:"read_gbps"`
	CachedCopy Quantiles `json:"cached_copy_gbps"`
	CachedRead Quantiles `json:"cached_read_gbps"`
	GEMM       Quantiles `json:"gemm_gflops"`      // float32
	GEMMBF16   Quantiles `json:"gemm_bf16_gflops"` // says whether the machine gains from bf16
}

const (
	memoryBytes = 256 << 20 // a buffer far larger than a cache
	cachedBytes = 4 << 20   // two of them stay in the last cache
	gemmSize    = 1536
)

// MeasureCeilings takes samples with as many threads as dev has.
func MeasureCeilings(ctx context.Context, dev *torch.Device, samples int) (Ceilings, error) {
	var c Ceilings
	a, b := make([]uint64, memoryBytes/8), make([]uint64, memoryBytes/8)
	for _, m := range []struct {
		into  *Quantiles
		bytes int
		work  func(bytes int)
		ways  int
	}{
		{&c.Copy, memoryBytes, func(n int) { share(n/8, dev.Threads(), func(i, j int) { copy(b[i:j], a[i:j]) }) }, 2},
		{&c.Read, memoryBytes, func(n int) { share(n/8, dev.Threads(), func(i, j int) { read(a[i:j]) }) }, 1},
		{&c.CachedCopy, cachedBytes, func(n int) { share(n/8, dev.Threads(), func(i, j int) { copy(b[i:j], a[i:j]) }) }, 2},
		{&c.CachedRead, cachedBytes, func(n int) { share(n/8, dev.Threads(), func(i, j int) { read(a[i:j]) }) }, 1},
	} {
		inner := memoryBytes / m.bytes // small buffers are gone over several times, so that starting threads costs nothing
		*m.into = rates(float64(inner*m.ways*m.bytes)/1e9, samples, func() {
			for range inner {
				m.work(m.bytes)
			}
		})
	}
	err := dev.Do(ctx, func(s *torch.Scope) error {
		product := func(dtype torch.DType, samples int) Quantiles {
			x, y := s.Full(dtype, 0.5, gemmSize, gemmSize), s.Full(dtype, 0.25, gemmSize, gemmSize)
			return rates(2*gemmSize*gemmSize*gemmSize/1e9, samples, func() { s.Scoped(func() { x.MatMul(y) }) })
		}
		c.GEMM, c.GEMMBF16 = product(torch.Float32, samples), product(torch.BFloat16, min(samples, 3)) // slow without instructions for it
		return nil
	})
	return c, err
}

// rates repeats work and gives the quantiles of amount per second.
func rates(amount float64, samples int, work func()) Quantiles {
	work()
	per := make([]float64, samples)
	for i := range per {
		start := time.Now()
		work()
		per[i] = amount / time.Since(start).Seconds()
	}
	return quantiles(per)
}

// share splits [0, n) among threads.
func share(n, threads int, work func(from, to int)) {
	var all sync.WaitGroup
	for t := range threads {
		all.Go(func() { work(t*n/threads, (t+1)*n/threads) })
	}
	all.Wait()
}

// read loads every element; four sums, so that the loads and not the additions are waited for.
func read(v []uint64) {
	var s0, s1, s2, s3 uint64
	for ; len(v) >= 8; v = v[8:] {
		w := v[:8:8]
		s0 += w[0] + w[4]
		s1 += w[1] + w[5]
		s2 += w[2] + w[6]
		s3 += w[3] + w[7]
	}
	runtime.KeepAlive(s0 + s1 + s2 + s3)
}

// Evict fills the caches with what no provider needs. It is called between samples of a cold cache.
func Evict() {
	v := evictor()
	for i := range v {
		v[i]++
	}
}

var evictor = sync.OnceValue(func() []uint64 { return make([]uint64, 96<<20/8) })
