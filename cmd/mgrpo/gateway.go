package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/agent/gateway"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/show/health"
)

// mountGateway adds the team's gateway to the process's server. It returns nil if the configuration has no gateway.
func mountGateway(cfg *config.Config, server *health.Server) (*trainer.Gateway, error) {
	if !cfg.HasGateway() {
		return nil, nil
	}
	g := &trainer.Gateway{Server: gateway.NewServer(), URL: strings.TrimSuffix(cfg.Gateway.Advertise, "/")}
	if g.URL == "" {
		g.URL = server.URL()
	}
	server.Handle("/v1/", g.Server)
	server.Handle("/r/", g.Server)
	if env := cfg.Gateway.TokenEnv; env != "" {
		token := os.Getenv(env)
		if len(token) < health.MinToken {
			return nil, fmt.Errorf("config: gateway.token_env: %s has %d bytes; want %d or more, for example from: openssl rand -hex 32", env, len(token), health.MinToken)
		}
		p := cfg.Task.Program
		g.Leases = gateway.NewLeases(gateway.LeaseSettings{Token: token, Lease: p.Lease, Timeout: p.Timeout, BaseURL: g.URL + "/v1"})
		server.Handle("/rollouts/", g.Leases)
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
		g.Transport = transport
	}
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
