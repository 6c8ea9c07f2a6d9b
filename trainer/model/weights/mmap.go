package weights

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

// mapping is a whole regular file mapped read-only.
type mapping struct{ data []byte }

// mapFile maps path. An empty file gives an empty mapping.
func mapFile(path string) (*mapping, error) {
	info, err := os.Stat(path) // checked before opening, because opening a FIFO blocks
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return nil, err
	}
	if info.Size() == 0 {
		return &mapping{}, nil
	}
	head := make([]byte, min(info.Size(), 1<<10))
	if _, err := f.ReadAt(head, 0); err != nil {
		return nil, err
	}
	if err := texts.Fetched(head); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of %s: %w", info.Size(), path, err)
	}
	return &mapping{data: data}, nil
}

func (m *mapping) close() error {
	if m.data == nil {
		return nil
	}
	data := m.data
	m.data = nil
	return unix.Munmap(data)
}

// unmap closes all mappings.
func unmap(all []*mapping) error {
	var errs []error
	for _, m := range all {
		errs = append(errs, m.close())
	}
	return errors.Join(errs...)
}

// guardMapped runs f. If a mapped file was cut short, reading it causes a memory fault, which would kill the process;
// guardMapped returns it as an error.
func guardMapped(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		fault, ok := r.(interface{ Addr() uintptr })
		if !ok {
			panic(r)
		}
		err = fmt.Errorf("the file changed or was cut short while in use (fault at %#x)", fault.Addr())
	}()
	return f()
}
