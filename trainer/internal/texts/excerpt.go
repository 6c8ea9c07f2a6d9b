package texts

import "strings"

// Excerpt returns a text that has at most `most` bytes as it is. It cuts a longer one, removes its invalid UTF-8, and appends "…".
func Excerpt(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
