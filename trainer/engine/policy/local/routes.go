package local

import (
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// routes returns a buffer for the experts of n rows, int32 [layers with experts, n, experts a token], which a pass
// writes, or nil for a model without experts.
func routes(s *torch.Scope, c *arch.Config, n int) *torch.Tensor {
	if c.Mixture == nil {
		return nil
	}
	return s.Empty(torch.Int32, int64(c.RoutedLayers()), int64(n), int64(c.Mixture.PerToken))
}

// readRoutes copies the experts of the batch's rows to the host; buffer may have more rows. The experts of row r are
// b.routes[r*width:][:width].
func (b *batch) readRoutes(buffer *torch.Tensor) {
	if buffer == nil {
		return
	}
	layers, rows, k := int(buffer.Size(0)), int(buffer.Size(1)), int(buffer.Size(2))
	host := make([]int32, layers*rows*k)
	buffer.Int32s(host)
	b.routes = make([]uint16, 0, b.rows*layers*k)
	for r := range b.rows {
		for l := range layers {
			for _, e := range host[(l*rows+r)*k:][:k] {
				b.routes = append(b.routes, uint16(e))
			}
		}
	}
}
