// Package emulated counts the work of tests on the emulated GPU (shim/test/emulated), which `make test-emulated` uses in place of a GPU.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package emulated

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>

static void *counter;

// Whether the process has loaded the emulated GPU.
static int find(void) {
  void *library = dlopen("libmgrpo_torch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  if (library) counter = dlsym(library, "mgt_emulated_counts");
  return counter != 0;
}
static void count(uint64_t *launches, uint64_t *uploads, uint64_t *waits) {
  ((void (*)(uint64_t *, uint64_t *, uint64_t *))counter)(launches, uploads, waits);
}
*/
import "C"

import "testing"

// Work counts the host's requests to a GPU: launches of operations and graphs, copies from host memory, and waits for launched work.
type Work struct{ Launches, Uploads, Waits int }

// Count returns the work of f. Without an emulated GPU it skips the test.
func Count(t testing.TB, f func()) Work {
	t.Helper()
	if C.find() == 0 {
		t.Skip("no emulated GPU: make test-emulated has one")
	}
	before := soFar()
	f()
	after := soFar()
	return Work{after.Launches - before.Launches, after.Uploads - before.Uploads, after.Waits - before.Waits}
}

func soFar() Work {
	var launches, uploads, waits C.uint64_t
	C.count(&launches, &uploads, &waits)
	return Work{int(launches), int(uploads), int(waits)}
}
