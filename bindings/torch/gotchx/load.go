package gotchx

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/sugarme/gotch"
	"github.com/sugarme/gotch/pickle"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

// BinTensor is a tensor of a state dict: a view of one of the storages in the file.
type BinTensor struct {
	Name    string
	Storage string // its key, for the archive's file data/KEY
	DType   torch.DType
	Size    int64 // elements of the storage
	Offset  int64 // of the tensor's first element in it
	Shape   []int64
	Stride  []int64
}

// StateDict lists the tensors of a state dict, by name, from its pickle: data.pkl in a file of torch.save, such as
// pytorch_model.bin. gotch's unpickler reads it. Storages are only named, so values are neither read nor copied.
//
// gotch's unpickler trusts the pickle, also the sizes that it allocates. Check an untrusted pickle first (package weights scans opcodes and
// sizes). If the unpickler panics, StateDict returns an error.
func StateDict(pickled []byte) (tensors []BinTensor, err error) {
	defer func() {
		if p := recover(); p != nil {
			tensors, err = nil, fmt.Errorf("gotchx: malformed or unsupported pickle: %v", p)
		}
	}()
	u := pickle.NewUnpickler(bytes.NewReader(pickled))
	u.FindClass, u.PersistentLoad = findClass, findStorage
	root, err := u.Load()
	if err != nil {
		return nil, fmt.Errorf("gotchx: %w", err)
	}
	add := func(key, value any) error {
		name, isName := key.(string)
		t, isTensor := value.(*pickle.StorageTensor)
		if !isName || !isTensor {
			return fmt.Errorf("gotchx: entry %v is a %T; a state dict maps names to tensors", key, value)
		}
		s := t.Source.(storage) // findStorage returns no other type
		dtype, err := fromDType(s.dtype)
		tensors = append(tensors, BinTensor{name, s.key, dtype, s.size, t.StorageOffset, t.Size, t.Stride})
		return err
	}
	switch dict := root.(type) {
	case *pickle.Dict:
		for _, entry := range *dict {
			err = errors.Join(err, add(entry.Key, entry.Value))
		}
	case *pickle.OrderedDict:
		for key, entry := range dict.Map {
			err = errors.Join(err, add(key, entry.Value))
		}
	default:
		err = fmt.Errorf("gotchx: the pickle holds a %T, not a state dict", root)
	}
	slices.SortFunc(tensors, func(a, b BinTensor) int { return strings.Compare(a.Name, b.Name) })
	return tensors, err
}

// storage only names a storage. gotch's own type would hold the values, and gotch's reader of
// whole files does not support bfloat16 and reads values one by one.
type storage struct {
	key   string
	dtype gotch.DType
	size  int64
}

func (s storage) DType() gotch.DType   { return s.dtype }
func (s storage) Device() gotch.Device { return gotch.CPU }
func (s storage) GetData() any         { return nil }

func (s storage) SetFromFile(io.Reader) error              { return errors.ErrUnsupported }
func (s storage) SetFromFileWithSize(io.Reader, int) error { return errors.ErrUnsupported }

var storageTypes = map[string]gotch.DType{"FloatStorage": gotch.Float, "HalfStorage": gotch.Half, "BFloat16Storage": gotch.BFloat16}

func findClass(module, name string) (any, error) {
	if module == "torch._utils" && name == "_rebuild_tensor_v2" {
		return &pickle.RebuildTensorV2{}, nil
	}
	if dtype, ok := storageTypes[name]; ok && module == "torch" {
		return dtype, nil
	}
	return nil, fmt.Errorf("%s.%s has no place in a state dict of float32, float16 or bfloat16 tensors", module, name)
}

// findStorage returns the storage for a persistent id ('storage', type, key, location, size).
func findStorage(id any) (any, error) {
	tuple, ok := id.(*pickle.Tuple)
	if !ok || tuple.Len() != 5 || tuple.Get(0) != "storage" {
		return nil, fmt.Errorf("persistent id %v is not a storage", id)
	}
	dtype, okType := tuple.Get(1).(gotch.DType)
	key, okKey := tuple.Get(2).(string)
	size, okSize := tuple.Get(4).(int)
	if !okType || !okKey || !okSize {
		return nil, fmt.Errorf("persistent id %v is not a storage of weights", id)
	}
	return storage{key, dtype, int64(size)}, nil
}
