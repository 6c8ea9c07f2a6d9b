package gotchx

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"unsafe"

	"github.com/sugarme/gotch/pickle"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

// LoadBin reads a state dict that torch.save wrote (pytorch_model.bin) with gotch's pickle reader and calls
// visit for every tensor, in the order of names: its elements in row-major order and the machine's byte
// order, valid during the call. The first error of visit ends the reading.
//
// gotch's reader trusts the file: it allocates what the file says. Check an untrusted file first (package
// checkpoint scans its pickle opcodes and sizes). A file that makes the reader panic is an error here.
func LoadBin(path string, visit func(name string, shape []int64, dtype torch.DType, data []byte) error) (err error) {
	tensors, err := readStateDict(path)
	if err != nil {
		return fmt.Errorf("gotchx: read %s: %w", path, err)
	}
	names := make([]string, 0, len(tensors))
	for name := range tensors {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		t := tensors[name]
		dtype, err := FromDType(t.Source.DType())
		if err != nil {
			return fmt.Errorf("gotchx: %s: tensor %q: %w", path, name, err)
		}
		data, err := elements(t)
		if err != nil {
			return fmt.Errorf("gotchx: %s: tensor %q: %w", path, name, err)
		}
		if err := visit(name, slices.Clone(t.Size), dtype, data); err != nil {
			return err
		}
	}
	return nil
}

func readStateDict(path string) (tensors map[string]*pickle.StorageTensor, err error) {
	defer func() {
		if p := recover(); p != nil {
			tensors, err = nil, fmt.Errorf("malformed or unsupported: %v", p)
		}
	}()
	if err := checkZip(path); err != nil {
		return nil, err
	}
	root, err := pickle.LoadWithUnpickler(path, func(r io.Reader) pickle.Unpickler { return pickle.NewUnpickler(r) })
	if err != nil {
		return nil, err
	}
	tensors = map[string]*pickle.StorageTensor{}
	add := func(key, value any) error {
		name, isName := key.(string)
		t, isTensor := value.(*pickle.StorageTensor)
		if !isName || !isTensor {
			return fmt.Errorf("entry %v is a %T; a state dict maps names to tensors", key, value)
		}
		tensors[name] = t
		return nil
	}
	switch dict := root.(type) {
	case *pickle.Dict:
		for _, entry := range *dict {
			if err := add(entry.Key, entry.Value); err != nil {
				return nil, err
			}
		}
	case *pickle.OrderedDict:
		for key, entry := range dict.Map {
			if err := add(key, entry.Value); err != nil {
				return nil, err
			}
		}
	default:
		return nil, fmt.Errorf("it holds a %T, not a state dict", root)
	}
	return tensors, nil
}

// checkZip refuses what is not a zip archive: on the format before PyTorch 1.6, gotch's reader does not
// return from some files.
func checkZip(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var magic [4]byte
	if _, err := io.ReadFull(f, magic[:]); err != nil || string(magic[:]) != "PK\x03\x04" {
		return errors.New("not a zip archive as torch.save writes since PyTorch 1.6; load it there and save it again")
	}
	return nil
}

// elements returns t's part of its storage as bytes in row-major order, sharing memory where it lies so.
func elements(t *pickle.StorageTensor) ([]byte, error) {
	storage := reflect.ValueOf(t.Source.GetData())
	if storage.Kind() != reflect.Slice {
		return nil, fmt.Errorf("storage of type %v", storage.Type())
	}
	size := int64(storage.Type().Elem().Size())
	bytes := unsafe.Slice((*byte)(storage.UnsafePointer()), int64(storage.Len())*size)
	numel, contiguous, err := layout(t, int64(storage.Len()))
	if err != nil || numel == 0 {
		return nil, err
	}
	if contiguous {
		return bytes[t.StorageOffset*size:][:numel*size], nil
	}
	out := make([]byte, 0, numel*size)
	index := make([]int64, len(t.Size))
	for range numel {
		at := t.StorageOffset
		for i, n := range index {
			at += n * t.Stride[i]
		}
		out = append(out, bytes[at*size:][:size]...)
		for i := len(index) - 1; i >= 0; i-- {
			if index[i]++; index[i] < t.Size[i] {
				break
			}
			index[i] = 0
		}
	}
	return out, nil
}

// layout returns the number of t's elements and whether they lie in row-major order without gaps, or an
// error if any lies outside a storage of length elements.
func layout(t *pickle.StorageTensor, length int64) (numel int64, contiguous bool, err error) {
	outside := fmt.Errorf("shape %v with strides %v at %d does not fit a storage of %d", t.Size, t.Stride, t.StorageOffset, length)
	if len(t.Size) != len(t.Stride) || t.StorageOffset < 0 || t.StorageOffset > length {
		return 0, false, outside
	}
	numel, contiguous = 1, true
	for i := len(t.Size) - 1; i >= 0; i-- {
		n, stride := t.Size[i], t.Stride[i]
		if n < 0 || stride < 0 || (n > 0 && numel > (1<<62)/n) {
			return 0, false, outside
		}
		contiguous = contiguous && (n <= 1 || stride == numel)
		numel *= n
	}
	if numel == 0 {
		return 0, true, nil
	}
	last := t.StorageOffset
	for i, n := range t.Size {
		if n > 1 && t.Stride[i] > (length-last)/(n-1) {
			return 0, false, outside
		}
		last += (n - 1) * t.Stride[i]
	}
	// Stride 0 repeats elements: no more of them than the file itself holds.
	if last >= length || numel > length {
		return 0, false, outside
	}
	return numel, contiguous, nil
}
