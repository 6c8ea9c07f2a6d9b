package config

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

func (t *Tool) validate(d *decoder) {
	key := "tools." + t.Name
	if t.Kind == "search" && t.Corpus == "" {
		d.failAt(key+".corpus", "missing; search needs a JSONL file or a folder of Markdown")
	}
	if t.Kind == "mcp" && (len(t.Command) == 0) == (t.URL == "") {
		d.failAt(key, "an MCP server needs either command or url")
	}
	if t.Kind == "retriever" && t.URL == "" {
		d.failAt(key+".url", "missing; a retriever needs the address of its service")
	}
	if t.URL != "" && !webAddress(t.URL) {
		d.failAt(key+".url", "must start with http:// or https://")
	}
	if hasUser(t.URL) {
		d.failAt(key+".url", "contains a user name or a password; put a token into an environment variable and name the variable in token_env")
	}
	for _, given := range []struct {
		key, kinds string
		is         bool
	}{
		{"corpus", "search", t.Corpus != ""},
		{"index", "search", t.Index != ""},
		{"command", "mcp", len(t.Command) > 0},
		{"url", "mcp or retriever", t.URL != ""},
		{"token_env", "mcp or retriever", t.TokenEnv != ""},
		{"request", "retriever", t.Request != ""},
		{"response", "retriever", t.Response != ""},
		{"env", "mcp", len(t.Env) > 0},
		{"prefix", "mcp", t.Prefix != ""},
		{"only", "mcp", len(t.Only) > 0},
		{"hosts", "visit", len(t.Hosts) > 0},
		{"networks", "visit", len(t.Networks) > 0},
	} {
		if given.is && !slices.Contains(strings.Split(given.kinds, " or "), t.Kind) {
			d.failAt(key+"."+given.key, "only a tool of kind %s has this key; this one is %s", given.kinds, t.Kind)
		}
	}
	if t.Kind == "visit" {
		t.Visit.validate(d, key)
	}
	if t.TokenEnv != "" {
		if !validEnv(t.TokenEnv) {
			d.failAt(key+".token_env", "must be the name of an environment variable, not the token itself")
		}
		if len(t.Command) > 0 {
			d.failAt(key+".token_env", "only for url; a program on stdio gets its variables through env")
		}
	}
	for i, e := range t.Env {
		if !validEnv(e) {
			d.failAt(fmt.Sprintf("%s.env[%d]", key, i), "must be the name of an environment variable")
		}
	}
}

var hostForm = regexp.MustCompile(`^(\*|(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)

func (v *Visit) validate(d *decoder, key string) {
	if len(v.Hosts) == 0 {
		d.failAt(key+".hosts", "missing; list the hosts that may be visited, such as [en.wikipedia.org]")
	}
	for i, h := range v.Hosts {
		if !hostForm.MatchString(h) {
			d.failAt(fmt.Sprintf("%s.hosts[%d]", key, i), "%q is not a host; use example.org, *.example.org or *, with :PORT if it is not the "+
				"scheme's default", clip(h))
		}
	}
	if len(v.Schemes) == 0 {
		d.failAt(key+".schemes", "missing; give http, https or both")
	}
	for i, s := range v.Schemes {
		if s != "http" && s != "https" {
			d.failAt(fmt.Sprintf("%s.schemes[%d]", key, i), "%q is not possible; valid are http, https", clip(s))
		}
	}
	for i, n := range v.Networks {
		if _, err := netip.ParsePrefix(n); err != nil {
			d.failAt(fmt.Sprintf("%s.networks[%d]", key, i), "%q is not a network; use one such as 10.1.0.0/16", clip(n))
		}
	}
	if !agentForm.MatchString(v.UserAgent) {
		d.failAt(key+".user_agent", "must be a name of letters, - and _, optionally followed by a version or comment, such as mybot/1.0 (+https://example.org)")
	}
}

var agentForm = regexp.MustCompile(`^[A-Za-z_-]+([/ ][ -~]*)?$`)
