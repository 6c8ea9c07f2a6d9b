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
	d.refuseIf(t.Kind == "search" && t.Corpus == "", key+".corpus", "missing; search needs a JSONL file or a folder of Markdown")
	d.refuseIf(t.Kind == "mcp" && (len(t.Command) == 0) == (t.URL == ""), key, "an MCP server needs either command or url")
	d.refuseIf(t.Kind == "retriever" && t.URL == "", key+".url", "missing; a retriever needs the address of its service")
	d.refuseIf(t.URL != "" && !webAddress(t.URL), key+".url", "must start with http:// or https://")
	d.refuseIf(hasUser(t.URL), key+".url", "contains a user name or a password; put a token into an environment variable and name the variable in token_env")
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
		d.refuseIf(given.is && !slices.Contains(strings.Split(given.kinds, " or "), t.Kind), key+"."+given.key,
			"only a tool of kind %s has this key; this one is %s", given.kinds, t.Kind)
	}
	if t.Kind == "visit" {
		t.Visit.validate(d, key)
	}
	d.secretEnv(key+".token_env", t.TokenEnv, "token")
	d.refuseIf(t.TokenEnv != "" && len(t.Command) > 0, key+".token_env", "only for url; a program on stdio gets its variables through env")
	for i, e := range t.Env {
		d.refuseIf(!envForm.MatchString(e), fmt.Sprintf("%s.env[%d]", key, i), "must be the name of an environment variable")
	}
}

var hostForm = regexp.MustCompile(`^(\*|(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)

func (v *Visit) validate(d *decoder, key string) {
	d.refuseIf(len(v.Hosts) == 0, key+".hosts", "missing; list the hosts that may be visited, such as [en.wikipedia.org]")
	for i, h := range v.Hosts {
		if !hostForm.MatchString(h) {
			d.failAt(fmt.Sprintf("%s.hosts[%d]", key, i), "%q is not a host; use example.org, *.example.org or *, with :PORT if it is not the "+
				"scheme's default", clip(h))
		}
	}
	d.refuseIf(len(v.Schemes) == 0, key+".schemes", "missing; give http, https or both")
	for i, s := range v.Schemes {
		d.refuseIf(s != "http" && s != "https", fmt.Sprintf("%s.schemes[%d]", key, i), "%q is not possible; valid are http, https", clip(s))
	}
	for i, n := range v.Networks {
		if _, err := netip.ParsePrefix(n); err != nil {
			d.failAt(fmt.Sprintf("%s.networks[%d]", key, i), "%q is not a network; use one such as 10.1.0.0/16", clip(n))
		}
	}
	d.refuseIf(!agentForm.MatchString(v.UserAgent), key+".user_agent",
		"must be a name of letters, - and _, optionally followed by a version or comment, such as mybot/1.0 (+https://example.org)")
}

var agentForm = regexp.MustCompile(`^[A-Za-z_-]+([/ ][ -~]*)?$`)
