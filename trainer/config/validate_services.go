package config

import (
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

func (s *Store) validate(d *decoder) {
	d.refuseIf(s.PasswordEnv != "" && s.PasswordFile != "", "store.password_file", "given in addition to store.password_env; keep one")
	d.secretEnv("store.password_env", s.PasswordEnv, "password")
	d.refuseIf((s.TLS.Cert == "") != (s.TLS.Key == ""), "store.tls", "cert and key go together")
	if s.URL == "" {
		return
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		// The parser's error would contain the URL, which may contain a password.
		d.failAt("store.url", "must be redis://HOST:PORT/DB, rediss:// or unix:///SOCKET")
		return
	}
	d.refuseIf(!slices.Contains([]string{"redis", "rediss", "unix"}, u.Scheme), "store.url",
		"must be redis://, rediss:// or unix://; found %s://", clip(u.Scheme))
	_, inURL := u.User.Password()
	d.refuseIf(inURL || u.Query().Has("password"), "store.url",
		"contains a password; put it into an environment variable and name the variable in store.password_env")
	d.refuseIf(u.User.Username() != "" && s.Username != "" && u.User.Username() != s.Username, "store.username",
		"differs from the user in store.url; keep one")
	d.refuseIf(u.Scheme != "rediss" && s.TLS != (TLS{}), "store.tls", "needs a store.url that starts with rediss://")
}

func (h *Health) validate(d *decoder) {
	d.secretEnv("health.token_env", h.TokenEnv, "token")
	if h.Address == "" {
		d.refuseIf(h.TokenEnv != "", "health.address", "missing; a token has an effect only with an address")
		return
	}
	d.refuseIf(!d.listening("health.address", h.Address) && h.TokenEnv == "", "health.token_env",
		"missing; health.address %s is open to other machines, so requests need a token", clip(h.Address))
}

func (t *Tracking) validate(d *decoder) {
	if !strings.Contains(t.MLflow, "://") {
		return
	}
	u, _ := url.Parse(t.MLflow)
	switch {
	case !webAddress(t.MLflow) || u.Path == "" || strings.HasSuffix(u.Path, "/"):
		d.failAt("tracking.mlflow", "must be URI/EXPERIMENT, such as http://127.0.0.1:5000/agents, or EXPERIMENT alone")
	case u.User != nil:
		d.failAt("tracking.mlflow", "contains a user or password; put them into MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD")
	}
}

func validateGateway(c *Config, d *decoder) {
	g, p := &c.Gateway, &c.Task.Program
	d.refuseIf(p.Elsewhere && len(p.Command) > 0, "task.program.elsewhere", "given in addition to task.program.command; keep one")
	d.refuseIf(p.Elsewhere && g.TokenEnv == "", "gateway.token_env", "missing; programs elsewhere need a token to ask for rollouts")
	d.refuseIf(len(p.Command) > 0 && p.Command[0] == "", "task.program.command", "its first word is empty; it must be a program")
	d.secretEnv("gateway.token_env", g.TokenEnv, "token")
	d.refuseIf((g.Cert == "") != (g.Key == ""), "gateway.cert", "cert and key go together")
	d.refuseIf(g.Advertise != "" && !webAddress(g.Advertise), "gateway.advertise", "must be http://HOST:PORT or https://HOST:PORT")
	if g.Listen == "" {
		return
	}
	local := d.listening("gateway.listen", g.Listen)
	if host, _, err := net.SplitHostPort(g.Listen); err == nil && g.Advertise == "" {
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			d.failAt("gateway.advertise", "missing; gateway.listen %s does not name a host, so other processes cannot find this one", clip(g.Listen))
		}
	}
	d.refuseIf(!local && g.Cert == "" && g.AllowInsecure == "", "gateway.cert",
		"missing; gateway.listen %s is open to other machines: give cert and key, or set gateway.allow_insecure", clip(g.Listen))
	d.refuseIf(!local && c.Health.Address == "", "gateway.listen", "%s is open to other machines, and so is the page at the same port: "+
		"set health.address to the same address, and health.token_env", clip(g.Listen))
	d.refuseIf(c.Health.Address != "" && c.Health.Address != g.Listen, "health.address",
		"differs from gateway.listen; both use one port: give the same address")
}

// listening checks an address to listen at, and reports whether only this machine can reach it.
func (d *decoder) listening(key, address string) (local bool) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		d.failAt(key, "must be HOST:PORT, such as 127.0.0.1:9464")
		return true
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		d.failAt(key, "%q is not a port; use a number from 0 to 65535", clip(port))
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
