package config

import (
	"fmt"
	"net/netip"
	"regexp"
)

func (s *Search) validate(d *decoder, key string) {
	d.refuseIf(s.Corpus == "", key+".corpus", "missing; search needs a JSONL file or a folder of Markdown")
}

func (r *Retriever) validate(d *decoder, key string) {
	d.refuseIf(r.URL == "", key+".url", "missing; a retriever needs the address of its service")
	r.Service.validate(d, key)
}

func (m *MCP) validate(d *decoder, key string) {
	d.refuseIf((len(m.Command) == 0) == (m.URL == ""), key, "an MCP server needs either command or url")
	d.refuseIf(m.TokenEnv != "" && len(m.Command) > 0, key+".token_env", "only for url; a program on stdio gets its variables through env")
	for i, e := range m.Env {
		d.refuseIf(!envForm.MatchString(e), fmt.Sprintf("%s.env[%d]", key, i), "must be the name of an environment variable")
	}
	m.Service.validate(d, key)
}

func (s *Service) validate(d *decoder, key string) {
	d.refuseIf(s.URL != "" && !webAddress(s.URL), key+".url", "must start with http:// or https://")
	d.refuseIf(hasUser(s.URL), key+".url", "contains a user name or a password; put a token into an environment variable and name the variable in token_env")
	d.secretEnv(key+".token_env", s.TokenEnv, "token")
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
