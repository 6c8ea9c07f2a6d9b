package weights

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
)

// binTensor is a tensor of a pickled state dict: a contiguous part of one of the file's storages.
type binTensor struct {
	name    string
	storage binStorage
	offset  int64 // of the first element
	shape   []int64
}

// binStorage is a storage of a pickled state dict: the file data/KEY of the archive.
type binStorage struct {
	key   string
	dtype DType
	size  int64 // number of elements
}

// valueBytes returns the size of a value, and 0 for storages of other types than those of safetensors files.
func (s binStorage) valueBytes() int64 { return safetensorsBits[string(s.dtype)] / 8 }

// addBin scans a zip archive that torch.save wrote, and registers its tensors.
func (o *opener) addBin(file string) error {
	found := map[string]tensor{}
	if err := o.scan(filepath.Join(o.path, file), func(data []byte) error { return scanBin(data, found) }); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if err := register(o, file, name, found[name]); err != nil {
			return err
		}
	}
	return nil
}

// scanBin checks an archive of torch.save and collects its tensors; their data are slices of file. The archive must have
// one data.pkl that scanPickle accepts. Every storage that it names must be in the archive, uncompressed and with the right
// size. A tensor of extra state is empty.
func scanBin(file []byte, found map[string]tensor) error {
	if !bytes.HasPrefix(file, []byte("PK\x03\x04")) {
		return errors.New("not a zip archive: save files from before PyTorch 1.6, and other pickles, again with torch.save")
	}
	archive, err := openArchive(file)
	if err != nil {
		return err
	}
	pickled, err := archive.pickle()
	if err != nil {
		return err
	}
	scanned, err := scanPickle(pickled)
	if err != nil {
		return err
	}
	for _, t := range scanned {
		if isExtraState(t.name) {
			found[t.name] = tensor{}
			continue
		}
		data, err := archive.storage(t.storage)
		if err != nil {
			return fmt.Errorf("tensor %s: %w", t.name, err)
		}
		n, _ := numel(t.shape)
		size := t.storage.valueBytes()
		found[t.name] = tensor{shape: t.shape, dtype: t.storage.dtype, data: data[t.offset*size : (t.offset+n)*size]}
	}
	return nil
}

// torchArchive is the zip file of torch.save: PREFIX/data.pkl, PREFIX/data/KEY, PREFIX/byteorder, ...
type torchArchive struct {
	file   []byte
	prefix string
	byName map[string]*zip.File
}

func openArchive(file []byte) (torchArchive, error) {
	a := torchArchive{file: file, byName: map[string]*zip.File{}}
	reader, err := zip.NewReader(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		return a, err
	}
	if len(reader.File) > maxTensors+16 {
		return a, fmt.Errorf("archive of %d files: at most %d", len(reader.File), maxTensors+16)
	}
	for _, f := range reader.File {
		if _, twice := a.byName[f.Name]; twice {
			return a, fmt.Errorf("%q occurs twice in the archive", f.Name)
		}
		a.byName[f.Name] = f
		if prefix, ok := strings.CutSuffix(f.Name, "/data.pkl"); ok {
			if a.prefix != "" || prefix == "" || strings.Contains(prefix, "/") {
				return a, fmt.Errorf("archive needs exactly one data.pkl, in a folder at its top: found %q", f.Name)
			}
			a.prefix = prefix
		}
	}
	if a.prefix == "" {
		return a, errors.New("the archive has no data.pkl: torch.save did not write it")
	}
	return a, a.checkByteOrder()
}

func (a torchArchive) checkByteOrder() error {
	f, ok := a.byName[a.prefix+"/byteorder"]
	if !ok {
		return nil // written before PyTorch 2.1, in practice always on little-endian machines
	}
	order, err := a.stored(f)
	if err == nil && string(order) != "little" {
		err = fmt.Errorf("byte order %q: want little", order[:min(len(order), 16)])
	}
	return err
}

func (a torchArchive) pickle() ([]byte, error) {
	f := a.byName[a.prefix+"/data.pkl"]
	data, err := a.stored(f)
	if err != nil {
		return nil, err
	}
	if len(data) > maxPickleBytes {
		return nil, fmt.Errorf("data.pkl of %d bytes is above the limit of %d", len(data), maxPickleBytes)
	}
	r, err := f.Open() // read again through the zip reader, which compares the CRC
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	defer r.Close()
	if data, err = io.ReadAll(r); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	return data, nil
}

// storage returns the bytes of a storage.
func (a torchArchive) storage(s binStorage) ([]byte, error) {
	if s.valueBytes() == 0 {
		return nil, fmt.Errorf("%s is not supported: %s in float32, float16 or bfloat16", s.dtype, saveTensors)
	}
	f, ok := a.byName[a.prefix+"/data/"+s.key]
	if !ok {
		return nil, fmt.Errorf("storage %q is not in the archive", s.key)
	}
	data, err := a.stored(f)
	if err != nil {
		return nil, err
	}
	if want := s.size * s.valueBytes(); int64(len(data)) != want {
		return nil, fmt.Errorf("storage %q has %d bytes, %d values of %s need %d", s.key, len(data), s.size, s.dtype, want)
	}
	return data, nil
}

// stored returns the bytes of an uncompressed entry as a slice of the file.
func (a torchArchive) stored(f *zip.File) ([]byte, error) {
	if f.Method != zip.Store || f.CompressedSize64 != f.UncompressedSize64 {
		return nil, fmt.Errorf("%q is compressed: torch.save does not compress", f.Name)
	}
	offset, err := f.DataOffset()
	if err != nil {
		return nil, fmt.Errorf("%q: %w", f.Name, err)
	}
	size := int64(len(a.file))
	if offset < 0 || f.UncompressedSize64 > math.MaxInt64 || offset > size || int64(f.UncompressedSize64) > size-offset {
		return nil, fmt.Errorf("%q reaches past the end of the file", f.Name)
	}
	return a.file[offset : offset+int64(f.UncompressedSize64)], nil
}
