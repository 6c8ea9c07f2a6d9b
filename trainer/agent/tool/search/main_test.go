package search

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// bleve starts a pool of analysers when the program starts.
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent())
}
