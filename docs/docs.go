// Package docs holds the text of documents that programs read. This package is private and changes without notice; docs/library.md lists
// the public ones.
package docs

import _ "embed"

// Metrics is the text of metrics.md.
//
//go:embed metrics.md
var Metrics string
