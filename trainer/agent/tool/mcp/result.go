package mcp

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// structuredKey is the field of a tool's result that may hold any JSON value.
const structuredKey = "structuredContent"

// losslessResult returns a JSON-RPC message with a tool's result in a form that the SDK reads without loss. The structured content is
// replaced by its own JSON text, as a string, because the SDK would decode its numbers as float64, which changes integers beyond 2^53.
// Without structured content, or if it is null, there is none. Parts whose bytes or size are written unusually get the canonical form,
// because the SDK would refuse the whole result. Fields that are not used are removed for the same reason. It returns other messages as
// they are.
func losslessResult(message []byte) []byte {
	keys := append([]string{structuredKey, "data", "blob", "size", "isError"}, unusedFields...)
	if !slices.ContainsFunc(keys, func(key string) bool { return bytes.Contains(message, []byte(`"`+key+`"`)) }) {
		return message
	}
	var fields, result map[string]json.RawMessage
	if json.Unmarshal(message, &fields) != nil || json.Unmarshal(fields["result"], &result) != nil {
		return message
	}
	changed := removeUnused(result)
	for key, canonical := range map[string]func(map[string]json.RawMessage) bool{"content": canonicalPart, "tools": removeUnused} {
		var parts []map[string]json.RawMessage
		partsChanged := false
		if json.Unmarshal(result[key], &parts) == nil {
			for _, part := range parts {
				partsChanged = canonical(part) || partsChanged
			}
		}
		if partsChanged {
			result[key] = encoded(parts)
		}
		changed = changed || partsChanged
	}
	if isError, err := strconv.ParseBool(strings.Trim(string(result["isError"]), `"`)); err == nil {
		result["isError"], changed = encoded(isError), true
	}
	if value, ok := result[structuredKey]; ok {
		changed = true
		var text bytes.Buffer
		if string(value) == "null" {
			delete(result, structuredKey)
		} else if json.Compact(&text, value) == nil {
			result[structuredKey] = encoded(text.String())
		}
	}
	if !changed {
		return message
	}
	fields["result"] = encoded(result)
	return encoded(fields)
}

// unusedFields are fields of tools, parts and results that have no effect here. Servers write unexpected values into them, such as the
// text "true" for a hint.
var unusedFields = []string{"_meta", "annotations", "execution", "icons", "outputSchema"}

// removeUnused removes unusedFields and reports whether there were any.
func removeUnused(fields map[string]json.RawMessage) bool {
	n := len(fields)
	for _, name := range unusedFields {
		delete(fields, name)
	}
	return len(fields) < n
}

// canonicalPart gives the bytes and the size of a part of a result their canonical form, and reports whether it changed the part.
func canonicalPart(part map[string]json.RawMessage) (changed bool) {
	changed = removeUnused(part)
	var resource map[string]json.RawMessage
	if json.Unmarshal(part["resource"], &resource) == nil {
		if removed := removeUnused(resource); canonicalBytes(resource, "blob") || removed {
			part["resource"], changed = encoded(resource), true
		}
	}
	if size, err := strconv.ParseFloat(string(part["size"]), 64); err == nil && size == math.Trunc(size) && math.Abs(size) < 1<<53 {
		whole := strconv.AppendInt(nil, int64(size), 10)
		changed = changed || !bytes.Equal(whole, part["size"])
		part["size"] = whole
	}
	return canonicalBytes(part, "data") || changed
}

var dataURL = regexp.MustCompile(`^\s*data:[^,]*;base64,`)

// canonicalBytes rewrites the bytes of a key in standard base64 if they are a data URL, lack padding, contain spaces or use the URL-safe
// alphabet. It reports whether it changed the key.
func canonicalBytes(part map[string]json.RawMessage, key string) bool {
	var text string
	if json.Unmarshal(part[key], &text) != nil {
		return false
	}
	if _, err := base64.StdEncoding.DecodeString(text); err == nil {
		return false
	}
	plain := strings.Join(strings.Fields(dataURL.ReplaceAllString(text, "")), "")
	plain = strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(plain, "="))
	data, err := base64.RawStdEncoding.DecodeString(plain)
	if err != nil {
		return false // the SDK returns the error
	}
	part[key] = encoded(base64.StdEncoding.EncodeToString(data))
	return true
}

// encoded returns v as JSON, on one line. v is a string, or maps of JSON texts that were read from JSON, so it cannot fail.
func encoded(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// losslessEvents is a stream of server-sent events with losslessResult applied to each line of data.
type losslessEvents struct {
	io.Closer
	in     *bufio.Reader
	unread []byte
}

func (e *losslessEvents) Read(p []byte) (int, error) {
	if len(e.unread) == 0 {
		line, err := e.in.ReadBytes('\n')
		if len(line) == 0 {
			return 0, err
		}
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			if exact := losslessResult(data); len(exact) > 0 && exact[len(exact)-1] != '\n' {
				line = append([]byte("data: "), append(exact, '\n')...)
			}
		}
		e.unread = line
	}
	n := copy(p, e.unread)
	e.unread = e.unread[n:]
	return n, nil
}

// losslessBody returns a body with one whole message, with losslessResult applied to it.
func losslessBody(body io.ReadCloser) io.ReadCloser {
	message, _ := io.ReadAll(body) // reading on returns its error again
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(losslessResult(message)), body), body}
}

// contentText returns the text of a result for the model. It uses structured content only if no part of the content has
// text, because a server that sends both repeats the structured content as text. It returns an error if a number would
// arrive changed.
func contentText(r *mcp.CallToolResult) (string, error) {
	var parts []string
	readable := false
	for _, c := range r.Content {
		part, text := partText(c)
		parts, readable = append(parts, part), readable || text
	}
	if !readable && r.StructuredContent != nil {
		text, err := structuredText(r.StructuredContent)
		if err != nil {
			return "", err
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "\n"), nil
}

// partText returns the text of one part of a result. text is false if the text only describes a part that a model
// cannot read.
func partText(c mcp.Content) (part string, text bool) {
	switch c := c.(type) {
	case *mcp.TextContent:
		return c.Text, true
	case *mcp.ResourceLink:
		return linkText(c), true
	case *mcp.EmbeddedResource:
		if c.Resource == nil {
			return "[an empty resource]", false
		}
		if c.Resource.Blob == nil {
			return c.Resource.Text, true
		}
		return fmt.Sprintf("[a resource that is not text: %s, %s]", c.Resource.URI, media(c.Resource.MIMEType, c.Resource.Blob)), false
	case *mcp.ImageContent:
		return fmt.Sprintf("[an image that is not shown: %s]", media(c.MIMEType, c.Data)), false
	case *mcp.AudioContent:
		return fmt.Sprintf("[a sound that is not played: %s]", media(c.MIMEType, c.Data)), false
	}
	return fmt.Sprintf("[content that is not text: %s]", strings.TrimPrefix(fmt.Sprintf("%T", c), "*mcp.")), false
}

func media(kind string, data []byte) string {
	if kind == "" {
		kind = "unknown type"
	}
	return fmt.Sprintf("%s, %d bytes", kind, len(data))
}

// linkText returns a resource's name, its address, and the server's description of it.
func linkText(l *mcp.ResourceLink) string {
	about := l.URI
	for _, more := range []string{l.Title, l.Description, l.MIMEType} {
		if more != "" {
			about += ", " + more
		}
	}
	if l.Size != nil {
		about += fmt.Sprintf(", %d bytes", *l.Size)
	}
	return fmt.Sprintf("[resource %s: %s]", l.Name, about)
}

// structuredText returns the JSON of structured content. That is the text left by losslessResult, or the value decoded
// by the SDK if none of its numbers may have been changed.
func structuredText(v any) (string, error) {
	if text, ok := v.(string); ok {
		return text, nil
	}
	if n, inexact := inexactNumber(v); inexact {
		return "", fmt.Errorf("the structured result has the number %g, whose last digits are not known; the server should also return it as text", n)
	}
	return string(encoded(v)), nil
}

// inexactNumber returns a number in v with an absolute value of at least 2^53, if any.
func inexactNumber(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, math.Abs(v) >= 1<<53
	case []any:
		for _, item := range v {
			if n, found := inexactNumber(item); found {
				return n, true
			}
		}
	case map[string]any:
		for _, item := range v {
			if n, found := inexactNumber(item); found {
				return n, true
			}
		}
	}
	return 0, false
}
