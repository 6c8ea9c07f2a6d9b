package mcp

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
)

// mcpResults are results of a tool as a server writes them, and the text that a model gets. A text that begins with "error: " is an error.
var mcpResults = []struct{ name, result, want string }{
	{"text", `{"content":[{"type":"text","text":"a \u003c b & é 😀"}]}`, "a < b & é 😀"},
	{"texts", `{"content":[{"type":"text","text":"one"},{"type":"text","text":""},{"type":"text","text":"two"}]}`, "one\n\ntwo"},
	{"nothing", `{"content":[]}`, ""},
	{"text_and_structure", `{"content":[{"type":"text","text":"{\"n\": 9007199254740993}"}],"structuredContent":{"n":9007199254740993}}`, `{"n": 9007199254740993}`},
	{"integers", `{"content":[],"structuredContent":{"z":9007199254740993,"a":-9223372036854775809,"m":18446744073709551616}}`,
		`{"z":9007199254740993,"a":-9223372036854775809,"m":18446744073709551616}`},
	{"floats", `{"content":[],"structuredContent":[1.0, 0.1, 1.10, 0.12345678901234567890, 1e400, -0.0, 1E-7]}`, `[1.0,0.1,1.10,0.12345678901234567890,1e400,-0.0,1E-7]`},
	{"nested", `{"content":[],"structuredContent":{"b":{"x":[{"y":null},[],{}]},"a":[[1,[2]],true,false]}}`, `{"b":{"x":[{"y":null},[],{}]},"a":[[1,[2]],true,false]}`},
	{"marks", `{"content":[],"structuredContent":{"t":"<b> & 'c' \"d\" \n é 😀"}}`, `{"t":"<b> & 'c' \"d\" \n é 😀"}`},
	{"structured_text", `{"content":[],"structuredContent":"007"}`, `"007"`},
	{"structured_number", `{"content":[],"structuredContent":9007199254740993}`, `9007199254740993`},
	{"structured_bool", `{"content":[],"structuredContent":false}`, `false`},
	{"structured_null", `{"content":[],"structuredContent":null}`, ""},
	{"image_address", `{"content":[{"type":"image","mimeType":"image/png","data":"data:image/png;base64,AAEC"},{"type":"text","text":"a < b"}]}`,
		"[an image that is not shown: image/png, 3 bytes]\na < b"},
	{"audio_unpadded", `{"content":[{"type":"audio","mimeType":"audio/wav","data":"AAECAw"},{"type":"audio","mimeType":"audio/wav","data":"-_-_"}]}`,
		"[a sound that is not played: audio/wav, 4 bytes]\n[a sound that is not played: audio/wav, 3 bytes]"},
	{"resource_unpadded", `{"content":[{"type":"resource","resource":{"uri":"file:///a.bin","blob":"AAECAw","_meta":[]}},{"type":"text","text":"t"}],"structuredContent":{"a":1}}`,
		"[a resource that is not text: file:///a.bin, unknown type, 4 bytes]\nt"},
	{"link_size", `{"content":[{"type":"resource_link","uri":"file:///b.csv","name":"b","size":1024.0}]}`, "[resource b: file:///b.csv, 1024 bytes]"},
	{"not_base64", `{"content":[{"type":"image","mimeType":"image/png","data":"?"}]}`, "error: calling \"tools/call\": illegal base64 data at input byte 0"},
	{"image", `{"content":[{"type":"image","mimeType":"image/png","data":"AAEC"}]}`, "[an image that is not shown: image/png, 3 bytes]"},
	{"image_and_structure", `{"content":[{"type":"image","mimeType":"image/png","data":"AAEC"}],"structuredContent":{"width":2}}`,
		"[an image that is not shown: image/png, 3 bytes]\n{\"width\":2}"},
	{"audio", `{"content":[{"type":"audio","mimeType":"audio/wav","data":""},{"type":"text","text":"a bell"}]}`, "[a sound that is not played: audio/wav, 0 bytes]\na bell"},
	{"resource", `{"content":[{"type":"resource","resource":{"uri":"file:///a.txt","mimeType":"text/plain","text":"in the file"}}]}`, "in the file"},
	{"resource_empty", `{"content":[{"type":"resource","resource":{"uri":"file:///a.txt","text":""}}]}`, ""},
	{"resource_blob", `{"content":[{"type":"resource","resource":{"uri":"file:///a.bin","blob":"AAEC"}}]}`, "[a resource that is not text: file:///a.bin, unknown type, 3 bytes]"},
	{"resource_link", `{"content":[{"type":"resource_link","uri":"file:///b.csv","name":"b","description":"all sales","mimeType":"text/csv","size":9}]}`,
		"[resource b: file:///b.csv, all sales, text/csv, 9 bytes]"},
	{"failed", `{"content":[{"type":"text","text":"no such city"}],"isError":true}`, "error: no such city"},
	{"failed_structure", `{"content":[],"structuredContent":{"code":9007199254740993},"isError":true}`, `error: {"code":9007199254740993}`},
	{"failed_text", `{"content":[{"type":"text","text":"no such city"}],"isError":"true"}`, "error: no such city"},
	{"odd_annotations", `{"content":[{"type":"text","text":"a","annotations":{"audience":"user","priority":"1"},"_meta":[]}],"isError":0,"_meta":[]}`, "a"},
	{"failed_silently", `{"content":[],"isError":true}`, "error: failed_silently failed without saying why"},
	{"unknown", `{"content":[{"type":"hologram","data":"AAEC"}]}`, `error: calling "tools/call": unrecognized content type "hologram"`},
}

// mcpReply returns the reply of a server with the tools of mcpResults to one request, or nil for a notification.
func mcpReply(request []byte) []byte {
	var r struct {
		ID     json.RawMessage
		Method string
		Params struct{ Name string }
	}
	if err := json.Unmarshal(request, &r); err != nil || r.ID == nil {
		return nil
	}
	result := `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"1"}}`
	switch r.Method {
	case "tools/list":
		var tools []string
		for _, c := range mcpResults {
			tools = append(tools, fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"},"annotations":{"readOnlyHint":"true"},"icons":{},"_meta":[]}`, c.name))
		}
		result = `{"tools":[null,` + strings.Join(tools, ",") + `],"nextCursor":"again"}` // the same page, always
	case "tools/call":
		for _, c := range mcpResults {
			if c.name == r.Params.Name {
				result = c.result
			}
		}
	}
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, r.ID, result)
}

// serveMCPResults runs a server on stdio.
func serveMCPResults() {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if reply := mcpReply(in.Bytes()); reply != nil {
			fmt.Println(string(reply))
		}
	}
	os.Exit(0)
}

// httpMCPResults starts a server over HTTP that replies in the given content type.
func httpMCPResults(t *testing.T, kind string) Options {
	return Options{URL: listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		reply := mcpReply(body)
		switch {
		case r.Method != http.MethodPost:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case reply == nil:
			w.WriteHeader(http.StatusAccepted)
		case kind == "text/event-stream":
			w.Header().Set("Content-Type", kind)
			fmt.Fprintf(w, ": note\nevent: message\ndata: %s\n\n", reply)
		default:
			w.Header().Set("Content-Type", kind)
			_, _ = w.Write(reply)
		}
	}))}
}

// TestMCPResultTypes: each kind of result is read correctly over each transport.
func TestMCPResultTypes(t *testing.T) {
	stdio := func(t *testing.T) Options {
		cfg := stdioConfig(t)
		t.Setenv(mcpServerEnv, "results")
		return cfg
	}
	for name, config := range map[string]func(*testing.T) Options{
		"stdio":  stdio,
		"json":   func(t *testing.T) Options { return httpMCPResults(t, "application/json") },
		"events": func(t *testing.T) Options { return httpMCPResults(t, "text/event-stream") },
	} {
		t.Run(name, func(t *testing.T) {
			m, err := Connect(t.Context(), config(t))
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if n := len(m.Tools()); n != len(mcpResults) {
				t.Errorf("got %d tools, want %d", n, len(mcpResults))
			}
			tools := map[string]tool.Tool{}
			for _, each := range m.Tools() {
				tools[each.Name()] = each
			}
			for _, c := range mcpResults {
				got, err := tools[c.name].Call(t.Context(), []byte("{}"))
				if err != nil {
					got = "error: " + err.Error()
				}
				if got != c.want {
					t.Errorf("%s: got %q, want %q", c.name, got, c.want)
				}
			}
		})
	}
}

// TestStructuredText: a structure whose original text was not kept is refused if reading it may have changed its numbers.
func TestStructuredText(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":[1,2.5,{"b":9007199254740991}]}`: `{"a":[1,2.5,{"b":9007199254740991}]}`,
		`{"a":[1,{"b":9007199254740993}]}`:     "",
		`-9007199254740993`:                    "",
	} {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		if got, err := structuredText(v); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, error %v", text, got, err)
		}
	}
}
