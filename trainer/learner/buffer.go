package learner

import (
	"github.com/mgrpo/mgrpo/bindings/torch"
)

// hostPiece is how many values of a moment in the host's memory are on the device at a time (16 MiB).
const hostPiece = 1 << 22

// moment is AdamW's first or second moment of a rank's share of the parameters, fp32: on the model's device, or in the host's memory, from
// where the device is lent a piece at a time.
type moment struct {
	onDevice *torch.Tensor // [n]; nil: the values are
	inHost   []float32
}

// newMoment is a moment of n zeros.
func newMoment(s *torch.Scope, n int64, inHost bool) moment {
	if inHost {
		return moment{inHost: make([]float32, n)}
	}
	return moment{onDevice: s.Keep(s.Zeros(torch.Float32, n))}
}

func (m moment) numel() int64 {
	if m.onDevice != nil {
		return m.onDevice.Numel()
	}
	return int64(len(m.inHost))
}

// step is how many values lend gives at most.
func (m moment) step() int64 {
	if m.onDevice != nil {
		return max(m.numel(), 1)
	}
	return hostPiece
}

// lend gives f the n values from element `from` on, on the device. What f writes there stays.
func (m moment) lend(s *torch.Scope, from, n int64, f func(piece *torch.Tensor) error) error {
	if m.onDevice != nil {
		return f(m.onDevice.Narrow(0, from, n))
	}
	values := m.inHost[from:][:n]
	piece := s.FromFloat32(values, n)
	err := f(piece)
	if err == nil {
		piece.Float32s(values)
	}
	return err
}

func (m moment) zero() {
	clear(m.inHost)
	if m.onDevice != nil {
		m.onDevice.Zero_()
	}
}
