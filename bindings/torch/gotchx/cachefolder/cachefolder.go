// Package cachefolder keeps gotch from making a folder. Before main, gotch creates $GOTCH_CACHE or
// $HOME/.cache/gotch for its downloads and ends the process where it cannot, as for a user without a home. We
// download nothing through it, so a folder that is always there will do.
//
// This runs first: Go initialises packages by import path as soon as what they import is, and this path sorts
// before gotch's. It must import nothing but os.
package cachefolder

import "os"

func init() {
	if os.Getenv("GOTCH_CACHE") == "" {
		os.Setenv("GOTCH_CACHE", "/")
	}
}
