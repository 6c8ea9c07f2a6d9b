// Package excerpt shortens texts from files, servers and models for messages.
package excerpt

import "strings"

// Of returns a text that has at most `most` bytes as it is. It cuts a longer one, removes its invalid UTF-8, and appends "…".
func Of(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
