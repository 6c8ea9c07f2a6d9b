// Package cachefolder prevents gotch from making a folder. Before main, gotch creates $GOTCH_CACHE or $HOME/.cache/gotch for its
// downloads, and ends the process if it cannot, for example if the user has no home. We do not download with it, so any folder that
// always exists suffices.
//
// This package runs first: Go initialises packages in the order of their import paths as soon as their imports are initialised, and this
// path sorts before gotch's. It must import only os.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package cachefolder

import "os"

func init() {
	if os.Getenv("GOTCH_CACHE") == "" {
		os.Setenv("GOTCH_CACHE", "/")
	}
}
