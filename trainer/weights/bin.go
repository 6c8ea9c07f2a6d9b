package weights

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
)

// BinLoader reads the tensors of a pytorch_model.bin file and hands each to visit, contiguous and little
// endian. visit copies what it keeps.
type BinLoader func(path string, visit func(name string, shape []int64, dtype DType, data []byte) error) error

var binLoader atomic.Pointer[BinLoader]

// SetBinLoader makes Open read pytorch_model.bin files through load, which gets to see a file only after
// its scan admitted it, and must return the names, shapes, types and bytes that the scan found. Tensors are
// read from the mapped file all the same: the loader's copy is not held. nil means no loader.
func SetBinLoader(load BinLoader) {
	if load == nil {
		binLoader.Store(nil)
		return
	}
	binLoader.Store(&load)
}

// addBin scans a zip archive written by torch.save, and registers its tensors.
func (s *Source) addBin(file string) error {
	path := filepath.Join(s.path, file)
	m, err := mapFile(path)
	if err != nil {
		return err
	}
	s.maps = append(s.maps, m)
	found := map[string]tensor{}
	if err := guardMapped(func() error { return scanBin(m.data, found) }); err != nil {
		return err
	}
	if load := binLoader.Load(); load != nil {
		if err := guardMapped(func() error { return loadScanned(*load, path, found) }); err != nil {
			return err
		}
	}
	for name, t := range found {
		if err := s.add(file, name, t); err != nil {
			return err
		}
	}
	return nil
}

// loadScanned holds the scanned tensors, which stay in the mapped file, against what the loader returns for them.
func loadScanned(load BinLoader, path string, found map[string]tensor) error {
	loaded := map[string]bool{}
	err := load(path, func(name string, shape []int64, dtype DType, data []byte) error {
		t, ok := found[name]
		if !ok || loaded[name] || t.dtype != dtype || !slices.Equal(t.shape, shape) || len(t.data) != len(data) {
			return fmt.Errorf("tensor %s %v %s: the loader and the scan disagree (scan: %v %s)", name, shape, dtype, t.shape, t.dtype)
		}
		if !bytes.Equal(t.data, data) {
			return fmt.Errorf("tensor %s: the loader's values are not those in the file", name)
		}
		loaded[name] = true
		return nil
	})
	debug.FreeOSMemory() // what the loader held of the file, before a model of that size is allocated
	if err == nil && len(loaded) != len(found) {
		err = fmt.Errorf("the loader returned %d tensors, the scan found %d", len(loaded), len(found))
	}
	return err
}

// scanBin checks a torch.save archive and collects its tensors, whose data are slices of file: one
// data.pkl that scanPickle admits, and every storage it names present, uncompressed and of the right size.
func scanBin(file []byte, found map[string]tensor) error {
	if !bytes.HasPrefix(file, []byte("PK\x03\x04")) {
		return errors.New("not a zip archive: files from before PyTorch 1.6 and other pickles must be saved anew with torch.save")
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
		storage, err := archive.storage(t)
		if err != nil {
			return fmt.Errorf("tensor %s: %w", t.name, err)
		}
		n, _ := numel(t.shape)
		size := t.dtype.Size()
		view, err := newTensor(t.shape, t.dtype, storage[t.offset*size:(t.offset+n)*size])
		if err != nil {
			return fmt.Errorf("tensor %s: %w", t.name, err)
		}
		found[t.name] = view
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
		return a, errors.New("archive holds no data.pkl: not written by torch.save")
	}
	return a, a.checkByteOrder()
}

func (a torchArchive) checkByteOrder() error {
	f, ok := a.byName[a.prefix+"/byteorder"]
	if !ok {
		return nil // written before PyTorch 2.1, on any machine we know of little endian
	}
	order, err := a.stored(f)
	if err == nil && string(order) != "little" {
		err = fmt.Errorf("byte order %q: only little is read", order[:min(len(order), 16)])
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
	r, err := f.Open() // once more through zip's reader, which compares the CRC
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	defer r.Close()
	if data, err = io.ReadAll(r); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	return data, nil
}

// storage returns the bytes of a tensor's storage.
func (a torchArchive) storage(t scannedTensor) ([]byte, error) {
	f, ok := a.byName[a.prefix+"/data/"+t.storage]
	if !ok {
		return nil, fmt.Errorf("storage %q is not in the archive", t.storage)
	}
	data, err := a.stored(f)
	if err != nil {
		return nil, err
	}
	if want := t.size * t.dtype.Size(); int64(len(data)) != want {
		return nil, fmt.Errorf("storage %q holds %d bytes, %d values of %s need %d", t.storage, len(data), t.size, t.dtype, want)
	}
	return data, nil
}

// stored returns the bytes of an uncompressed entry as a slice of the file.
func (a torchArchive) stored(f *zip.File) ([]byte, error) {
	if f.Method != zip.Store || f.CompressedSize64 != f.UncompressedSize64 {
		return nil, fmt.Errorf("%q is compressed: torch.save stores its files as they are", f.Name)
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
