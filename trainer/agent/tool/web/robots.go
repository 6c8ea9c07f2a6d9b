package web

import (
	"bufio"
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

// maxRobots is the largest number of bytes of a robots.txt that are read; the rest is ignored (RFC 9309, section 2.5).
const maxRobots = 512 << 10

// robots holds the rules of a robots.txt for one crawler (RFC 9309).
type robots []robotsRule

type robotsRule struct {
	pattern string // pattern of path and query, normalised; * matches any text, a final $ the end
	allow   bool
}

// parseRobots returns the rules for the crawler with a product token: the rules of all groups that name it, or
// otherwise the rules for *.
func parseRobots(text []byte, product string) robots {
	var own, others robots
	var named, fitsOwn, fitsAll, inRules bool
	lines := bufio.NewScanner(bytes.NewReader(texts.Normalize(text)))
	lines.Buffer(nil, maxRobots+1)
	lines.Split(splitRobots)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		key, value, found := strings.Cut(line, ":")
		if !found {
			continue
		}
		value = strings.TrimSpace(value)
		switch key = strings.ToLower(strings.TrimSpace(key)); key {
		case "user-agent":
			if inRules { // a new group begins
				fitsOwn, fitsAll, inRules = false, false, false
			}
			name, _, _ := strings.Cut(value, "/")
			fitsOwn = fitsOwn || strings.EqualFold(strings.TrimSpace(name), product)
			fitsAll = fitsAll || value == "*"
			named = named || fitsOwn
		case "allow", "disallow":
			inRules = true
			if value == "" {
				continue
			}
			pattern, whole := strings.CutSuffix(value, "$")
			rule := robotsRule{normalPath(pattern, separators+"*"), key == "allow"}
			if whole {
				rule.pattern += "$"
			}
			if fitsOwn {
				own = append(own, rule)
			}
			if fitsAll {
				others = append(others, rule)
			}
		}
	}
	if named {
		return own
	}
	return others
}

// splitRobots splits at any of the three line ends in the standard: LF, CR and CRLF.
func splitRobots(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexAny(data, "\r\n"); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// allows reports whether a path with its query may be fetched. The longest matching pattern decides; among equally long
// ones, one that allows wins.
func (r robots) allows(path string) bool {
	path = normalPath(path, separators)
	longest, allowed := -1, true
	for _, rule := range r {
		if n := len(rule.pattern); n < longest || n == longest && allowed || !rule.fits(path) {
			continue
		}
		longest, allowed = len(rule.pattern), rule.allow
	}
	return allowed
}

// fits reports whether the pattern matches the beginning of path, or all of path if the pattern ends with $. It takes
// time linear in both.
func (r robotsRule) fits(path string) bool {
	pattern, whole := strings.CutSuffix(r.pattern, "$")
	parts := strings.Split(pattern, "*")
	rest, ok := strings.CutPrefix(path, parts[0])
	if !ok {
		return false
	}
	for i, part := range parts[1:] {
		if whole && i == len(parts)-2 { // the last part must be at the end
			return strings.HasSuffix(rest, part)
		}
		at := strings.Index(rest, part)
		if at < 0 {
			return false
		}
		rest = rest[at+len(part):]
	}
	return !whole || rest == ""
}

// separators are the octets that separate parts of a path and query.
const separators = "/?&=%"

// normalPath normalises the octets of a path and query, so that two notations of one path compare equal (RFC 9309,
// section 2.2.2). It writes octets as %XX unless they are unreserved or in keep, and decodes unreserved octets.
func normalPath(path, keep string) string {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		c := path[i]
		escaped := false
		if c == '%' && i+2 < len(path) {
			if octet, err := strconv.ParseUint(path[i+1:i+3], 16, 8); err == nil {
				c, escaped, i = byte(octet), true, i+2
			}
		}
		unreserved := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
		if unreserved || !escaped && strings.IndexByte(keep, c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
