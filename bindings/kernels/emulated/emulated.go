// Package emulated runs the CUDA kernels on an emulated GPU (kernels/test/emulator), for tests on machines without a
// GPU. It loads a library of `make native-tests`, which programs do not link.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package emulated

/*
#cgo CFLAGS: -I${SRCDIR}/.. -I${SRCDIR}/../../../kernels/include
#cgo LDFLAGS: -ldl -Wl,-rpath,${SRCDIR}/../../../build/lib
#include <dlfcn.h>
#include "gpu.h"

static mgrpo_gpu table;

// Go's build cache ignores a change of gpu.h, but not a change of this number.
_Static_assert(sizeof table == 14 * sizeof(void *), "gpu.h has another number of functions");

// Returns the dynamic linker's error message, or NULL.
static const char *load(void) {
  void *library = dlopen("libmgrpo_kernels_emulated.so", RTLD_NOW | RTLD_LOCAL);
  if (!library) return dlerror();
#define FIND(name) \
  if (!(table.name = (__typeof__(table.name))dlsym(library, #name))) return dlerror();
  MGRPO_GPU_FUNCTIONS(FIND)
  return NULL;
}
static void *address(void) { return &table; }
*/
import "C"

import (
	"sync"
	"testing"
	"unsafe"
)

var load = sync.OnceValue(func() *C.char { return C.load() })

// Table returns the address of the kernels' table, for kernels.OfTable. The emulator runs one call at a time.
func Table(t testing.TB) unsafe.Pointer {
	t.Helper()
	if wrong := load(); wrong != nil {
		t.Fatalf("emulated: %s (make native-tests builds it)", C.GoString(wrong))
	}
	return C.address()
}
