package jinja

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

var escapes = map[string]string{"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v",
	`\`: `\`, "'": "'", `"`: `"`, "\n": ""}

// escapeForms are the escapes: characters by hexadecimal or octal number, and all others.
var escapeForms = regexp.MustCompile(`(?s)\\(?:x([[:xdigit:]]{2})|u([[:xdigit:]]{4})|U([[:xdigit:]]{8})|([0-7]{1,3})|(.))`)

// unescape decodes Python's string escapes. Unknown escapes stay unchanged.
func unescape(s string) (string, error) {
	var failed error
	text := escapeForms.ReplaceAllStringFunc(s, func(escape string) string {
		rest := escape[1:]
		known, ok := escapes[rest]
		digits, base := strings.TrimLeft(rest, "xuU"), 16
		if digits == rest {
			base = 8
		}
		n, err := strconv.ParseUint(digits, base, 32)
		switch {
		case ok:
			return known
		case rest == "N":
			failed = errors.New(`escapes by name, \N, are not supported`)
		case strings.Contains("xuU", rest):
			failed = fmt.Errorf(`the escape \%s is cut short`, rest)
		case err != nil: // an unknown escape
			return escape
		case !utf8.ValidRune(rune(n)):
			failed = fmt.Errorf(`\%s is not a character`, rest)
		}
		return string(rune(n))
	})
	return text, failed
}
