package model

import (
	"context"
	"errors"
	"fmt"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// quantTypes maps the block types of GGUF files in which matrices can stay.
var quantTypes = map[weights.DType]torch.QuantType{
	weights.Q4_0: torch.Q4_0, weights.Q4_1: torch.Q4_1, weights.Q5_0: torch.Q5_0, weights.Q5_1: torch.Q5_1, weights.Q8_0: torch.Q8_0,
	weights.Q4_K: torch.Q4_K, weights.Q5_K: torch.Q5_K, weights.Q6_K: torch.Q6_K,
}

// staysQuantised reports whether Options.Quantised keeps a leaf in the file's blocks. The leaf
// must be a matrix, and the file must hold all of its tensors in such blocks, in an order that
// Source.Blocks can change to the one of folders.
func staysQuantised(src *weights.Source, l arch.Leaf) bool {
	for _, t := range l.Parts {
		if _, ok := quantTypes[src.TypeOf(t.Name)]; !ok || !src.InBlocks(t.Name) {
			return false
		}
	}
	return len(l.Shape) == 2
}

// QuantisedBytes returns the size of the weights of a checkpoint that is loaded with Options.Quantised.
func QuantisedBytes(src *weights.Source, compute torch.DType) (bytes int64) {
	cfg := src.Config()
	for _, l := range cfg.Layout().Leaves {
		if !staysQuantised(src, l) {
			bytes += l.Numel() * int64(compute.Size())
			continue
		}
		for _, t := range l.Parts {
			bytes += t.Shape[0] * src.TypeOf(t.Name).RowBytes(t.Shape[1])
		}
	}
	return bytes
}

// loadQuantised makes a model that holds matrices in the file's blocks and every other leaf in the compute type.
func loadQuantised(ctx context.Context, dev *torch.Device, src *weights.Source, opt Options) (*Model, error) {
	cfg := src.Config()
	switch {
	case src.GGUFMeta() == nil:
		return nil, errors.New("model: this checkpoint is a folder, and only a GGUF file has quantised weights to keep: set dtype to fp32 or bf16")
	case cfg.Mixture != nil:
		return nil, errors.New("model: a mixture of experts cannot stay quantised: set dtype to fp32 or bf16")
	}
	m, err := prepare(dev, cfg)
	if err != nil {
		return nil, err
	}
	m.quantised = make([]*torch.Quantised, len(m.Layout.Leaves))
	for i, l := range m.Layout.Leaves {
		if staysQuantised(src, l) {
			m.quantised[i], err = readBlocks(ctx, dev, src, l, opt.Compute)
			m.leaves = append(m.leaves, nil)
		} else {
			var t *torch.Tensor
			t, err = readLeaf(ctx, m, src, l, opt.Compute)
			m.leaves = append(m.leaves, t)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("model: %s: %w", l.Name, err), m.Close(ctx))
		}
	}
	err = dev.Do(ctx, func(s *torch.Scope) error {
		m.tables = tablesOf(s, &m.Config, opt.MaxPosition)
		m.Training = m.decoder(m.leaves, m.leaves)
		m.Generation = m.Training
		return nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("model: %w", err), m.Close(ctx))
	}
	return m, nil
}

// readBlocks reads a matrix in the file's blocks. Consecutive tensors of one type become one part.
func readBlocks(ctx context.Context, dev *torch.Device, src *weights.Source, l arch.Leaf, dt torch.DType) (*torch.Quantised, error) {
	k := l.Shape[1]
	var parts []torch.QuantPart
	for i := 0; i < len(l.Parts); {
		kind, rows, end := src.TypeOf(l.Parts[i].Name), int64(0), i
		for ; end < len(l.Parts) && src.TypeOf(l.Parts[end].Name) == kind; end++ {
			rows += l.Parts[end].Shape[0]
		}
		part := torch.QuantPart{Type: quantTypes[kind]}
		err := dev.Do(ctx, func(s *torch.Scope) error {
			part.Blocks = torch.KeptEmpty(s, torch.Uint8, rows, kind.RowBytes(k))
			parts = append(parts, part)
			return nil
		})
		at := int64(0)
		for ; i < end && err == nil; i++ {
			err = copyBlocks(ctx, dev, src, l.Parts[i], part.Blocks, at)
			at += l.Parts[i].Shape[0]
		}
		if err != nil {
			return torch.NewQuantised(k, dt, parts...), err
		}
	}
	return torch.NewQuantised(k, dt, parts...), nil
}

// copyBlocks fills the rows of dst that begin at row `at` with a tensor of the file, a few rows at a time.
func copyBlocks(ctx context.Context, dev *torch.Device, src *weights.Source, t arch.Tensor, dst *torch.Tensor, at int64) error {
	rows, rowBytes := t.Shape[0], dst.Size(1)
	step := max(4*chunkElements/rowBytes, 1)
	buf := make([]byte, min(step, rows)*rowBytes)
	for from := int64(0); from < rows; from += step {
		n := min(step, rows-from)
		if err := src.Blocks(t.Name, from, from+n, buf[:n*rowBytes]); err != nil {
			return err
		}
		err := dev.Do(ctx, func(*torch.Scope) error {
			dst.Narrow(0, at+from, n).SetBytes(buf[:n*rowBytes], torch.Uint8)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// readLeaf reads a leaf that does not stay quantised.
func readLeaf(ctx context.Context, m *Model, src *weights.Source, l arch.Leaf, dt torch.DType) (leaf *torch.Tensor, err error) {
	var flat *torch.Tensor
	err = m.Device.Do(ctx, func(s *torch.Scope) error {
		flat = torch.KeptEmpty(s, dt, l.Numel())
		leaf = s.Keep(flat.View(l.Shape...))
		return nil
	})
	for _, t := range l.Parts {
		if err != nil {
			break
		}
		to := BufferOver(flat)
		err = inPieces(t.Numel(), rowsAtATime(t), rowsOf(src, t), func(from int64, values []float32) error {
			return to.Set(ctx, t.Offset-l.Offset+from, values)
		})
	}
	return leaf, errors.Join(err, m.Device.Do(ctx, func(*torch.Scope) error { flat.Drop(); return nil }))
}

// widen fills dst with a checkpoint's tensor of leaf i.
func (m *Model) widen(s *torch.Scope, i int, t arch.Tensor, dst []float32) {
	m.wantWhole("widen")
	offset := t.Offset - m.Layout.Leaves[i].Offset
	if m.leaves[i] != nil {
		m.leaves[i].View(-1).Narrow(0, offset, t.Numel()).Float32s(dst)
		return
	}
	q := m.quantised[i]
	cols := t.Shape[1]
	step := max(chunkElements/cols, 1)
	for from := int64(0); from < t.Shape[0]; from += step {
		n := min(step, t.Shape[0]-from)
		s.Scoped(func() { q.Widen(s, offset/cols+from, n).Float32s(dst[from*cols:][:n*cols]) })
	}
}
