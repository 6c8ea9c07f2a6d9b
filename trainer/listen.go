package trainer

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent/gateway"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/internal/secret"
	"github.com/mgrpo/mgrpo/trainer/show/health"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// listen opens the server of this process at the configured address, and mounts the team's
// gateway, which is nil if the configuration has none. Without an address, a process with some of
// the agents listens at a free port of 127.0.0.1. A process with all agents then listens only if
// there is a gateway, and otherwise the server is nil. agents are the agents of this process; nil means all.
func listen(cfg *config.Config, agents []string) (*health.Server, *processGateway, error) {
	if err := config.CheckAgents(cfg, agents); err != nil {
		return nil, nil, err
	}
	o := health.Options{Address: cmp.Or(cfg.Gateway.Listen, cfg.Health.Address), Agents: agentsOf(cfg, agents), Newest: newestCheckpoint(cfg)}
	if o.Address == "" {
		if agents == nil && !cfg.HasGateway() {
			return nil, nil, nil
		}
		o.Address = "127.0.0.1:0"
	}
	var err error
	if o.Token, err = secret.FromEnv("config: health.token_env", cfg.Health.TokenEnv); err != nil {
		return nil, nil, err
	}
	if o.TLS, err = gatewayTLS(cfg); err != nil {
		return nil, nil, err
	}
	server, err := health.Listen(o)
	if err != nil {
		return nil, nil, err
	}
	g, err := mountGateway(cfg, server)
	if err == nil && g != nil && agents != nil {
		err = checkReachable(cfg, g.url)
	}
	if err != nil {
		return nil, nil, errors.Join(err, server.Close())
	}
	return server, g, nil
}

// checkReachable returns an error if workers on other machines cannot reach this worker's gateway. If the store is on another machine, it
// assumes that there are such workers.
func checkReachable(cfg *config.Config, gateway string) error {
	own, err := url.Parse(gateway)
	if err != nil || !localHost(own.Hostname()) || cfg.Gateway.Advertise != "" {
		return nil // the given address is the user's choice
	}
	if at, err := url.Parse(cfg.Store.URL); err != nil || localHost(at.Hostname()) {
		return nil
	}
	return fmt.Errorf("config: gateway.advertise is not set: the other workers would send requests of programs to %s, but the store is on another machine. "+
		"Set it to this worker's address, such as http://node0:%s, with gateway.listen: \":%s\"; if all workers are on this machine, set it to %s",
		gateway, own.Port(), own.Port(), gateway)
}

// localHost reports whether a URL's host is this machine's loopback, or empty, as in the URL of a socket.
func localHost(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || host == "localhost" || ip.IsLoopback() || ip.IsUnspecified()
}

// mountGateway adds the team's gateway to the process's server. It returns nil if the configuration has no gateway.
func mountGateway(cfg *config.Config, server *health.Server) (*processGateway, error) {
	if !cfg.HasGateway() {
		return nil, nil
	}
	g := &processGateway{server: gateway.NewServer(), url: cmp.Or(strings.TrimSuffix(cfg.Gateway.Advertise, "/"), server.URL())}
	if env := cfg.Gateway.TokenEnv; env != "" {
		token, err := secret.FromEnv("config: gateway.token_env", env)
		if err != nil {
			return nil, err
		}
		if len(token) < health.MinToken {
			return nil, fmt.Errorf("config: gateway.token_env: %s has %d bytes; want %d or more, for example from: openssl rand -hex 32", env, len(token),
				health.MinToken)
		}
		p := cfg.Task.Program
		g.leases = gateway.NewLeases(gateway.LeaseOptions{Token: token, Lease: p.Lease, Timeout: p.Timeout, BaseURL: g.url + "/v1"})
	}
	if cfg.Gateway.CA != "" {
		pem, err := os.ReadFile(cfg.Resolve(cfg.Gateway.CA))
		if err != nil {
			return nil, fmt.Errorf("config: gateway.ca: %w", err)
		}
		authorities := x509.NewCertPool()
		if !authorities.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("config: gateway.ca: %s has no certificate", cfg.Gateway.CA)
		}
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.TLSClientConfig = &tls.Config{RootCAs: authorities}
		g.transport = transport
	}
	g.mount(server)
	return g, nil
}

// gatewayTLS returns the certificate of the process's server, or nil for plain HTTP.
func gatewayTLS(cfg *config.Config) (*tls.Config, error) {
	if cfg.Gateway.Cert == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(cfg.Resolve(cfg.Gateway.Cert), cfg.Resolve(cfg.Gateway.Key))
	if err != nil {
		return nil, fmt.Errorf("config: gateway.cert: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}

// newestCheckpoint returns a function that finds the run's newest complete checkpoint, for a health server.
func newestCheckpoint(cfg *config.Config) func() (step int64, at time.Time, ok bool) {
	checkpoints := archive.CheckpointsOf(cfg.RunDir())
	return func() (step int64, at time.Time, ok bool) {
		steps, err := checkpoints.List()
		if err != nil || len(steps) == 0 {
			return 0, time.Time{}, false
		}
		step = steps[len(steps)-1]
		at, err = archive.CompletedAt(checkpoints.StepDir(step))
		return step, at, err == nil // an error means that it was removed a moment ago
	}
}
