package main

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/show/health"
)

// serveHealth listens at the configured address. Without one, a worker listens at any free port of its machine, and a
// training in one process does not listen: the server is nil then. agents nil means all.
func serveHealth(cfg *config.Config, agents []string) (*health.Server, error) {
	o := health.Options{Address: cmp.Or(cfg.Gateway.Listen, cfg.Health.Address), Agents: agents, Newest: trainer.NewestCheckpoint(cfg)}
	if o.Agents == nil {
		o.Agents = cfg.AgentNames()
	}
	if o.Address == "" {
		if agents == nil && !cfg.HasGateway() {
			return nil, nil
		}
		o.Address = "127.0.0.1:0"
	}
	var err error
	if o.Token, err = healthToken(cfg); err != nil {
		return nil, err
	}
	if o.TLS, err = gatewayTLS(cfg); err != nil {
		return nil, err
	}
	return health.Listen(o)
}

// healthToken returns the token that requests must carry, or "" if none is configured.
func healthToken(cfg *config.Config) (string, error) {
	env := cfg.Health.TokenEnv
	if env == "" {
		return "", nil
	}
	token := os.Getenv(env)
	if token == "" {
		return "", fmt.Errorf("config: health.token_env: the environment has no %s", env)
	}
	return token, nil
}

// hostPort returns the address that --listen names, where a port alone is one of 127.0.0.1.
func hostPort(listen string) (string, error) {
	if _, err := strconv.ParseUint(listen, 10, 16); err == nil {
		return net.JoinHostPort("127.0.0.1", listen), nil
	}
	_, port, err := net.SplitHostPort(listen)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return "", fmt.Errorf("--listen %s: want [HOST:]PORT, such as 9464 or 127.0.0.1:9464", listen)
	}
	return listen, nil
}

// addresses returns the URL of a path of a server for people. If the server listens at all addresses of the machine, the text
// has the URL for this machine and the one for others.
func addresses(server *health.Server, path string) string {
	text := server.URL() + path
	if other := server.HostURL(); other != "" {
		text += ", from other machines " + other + path
	}
	return text
}
