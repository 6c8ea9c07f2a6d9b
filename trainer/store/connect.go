package store

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// silence keeps the client from writing to standard error: what it has to say is in the errors too.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

func init() { redis.SetLogger(silence{}) }

// clientOptions turns Options into those of the Redis client, and refuses a store that anyone on the
// network could read and write.
func clientOptions(o Options) (*redis.UniversalOptions, error) {
	u, err := url.Parse(o.URL)
	if err != nil {
		return nil, errors.New("store: the url is not one: want redis://HOST:PORT/DB, rediss:// or unix:///SOCKET")
	}
	opts, err := parseURL(u)
	if err != nil {
		return nil, fmt.Errorf("store: url: %w", err)
	}
	if o.Username != "" {
		opts.Username = o.Username
	}
	if o.Password != "" {
		opts.Password = o.Password
	}
	local := u.Scheme == "unix" || loopback(u.Hostname())
	if u.Scheme != "rediss" && opts.Password == "" && !local && !o.AllowInsecure {
		return nil, fmt.Errorf("store: %s has neither TLS nor a password, and is not on this machine: use rediss://, set store.password_env, "+
			"or say store.allow_insecure: \"anyone may read and write\"", u.Host)
	}
	if u.Scheme == "rediss" {
		if opts.TLSConfig, err = tlsConfig(o, u.Hostname()); err != nil {
			return nil, err
		}
	}
	opts.ContextTimeoutEnabled = true
	opts.DisableIdentity = true
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	opts.PoolTimeout = 30 * time.Second
	opts.DialerRetries = 1 // what fails is repeated by Store.retry and Store.wait, within their deadlines
	return opts, nil
}

// parseURL reads a URL of one server, of a Sentinel (with master_name) or of a cluster (with addr or
// cluster=true).
func parseURL(u *url.URL) (*redis.UniversalOptions, error) {
	opts := &redis.UniversalOptions{Username: u.User.Username()}
	opts.Password, _ = u.User.Password()
	if u.Scheme == "unix" {
		one, err := redis.ParseURL(u.String())
		if err != nil {
			return nil, err
		}
		opts.Addrs, opts.DB = []string{one.Addr}, one.DB
		return opts, nil
	}
	if u.Scheme != "redis" && u.Scheme != "rediss" {
		return nil, fmt.Errorf("want redis://, rediss:// or unix://, found %s://", u.Scheme)
	}
	host, port := u.Hostname(), u.Port()
	if host == "" {
		host = "localhost"
	}
	if port == "" {
		port = "6379"
	}
	opts.Addrs = []string{net.JoinHostPort(host, port)}
	if db := strings.Trim(u.Path, "/"); db != "" {
		n, err := strconv.Atoi(db)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%q is not the number of a database", db)
		}
		opts.DB = n
	}
	for key, values := range u.Query() {
		switch key {
		case "addr":
			opts.Addrs = append(opts.Addrs, values...)
		case "master_name":
			opts.MasterName = values[0]
		case "cluster":
			opts.IsClusterMode = values[0] == "true"
		default:
			return nil, fmt.Errorf("unknown parameter %q; addr, master_name and cluster are known", key)
		}
	}
	return opts, nil
}

// loopback says whether a host can only be this machine.
func loopback(host string) bool {
	if host == "" || host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func tlsConfig(o Options, host string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if o.ServerName != "" {
		c.ServerName = o.ServerName
	}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("store: tls.ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("store: tls.ca: %s holds no certificate in PEM form", o.CAFile)
		}
	}
	if o.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("store: tls.cert, tls.key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// The oldest server with XAUTOCLAIM.
const minMajor, minMinor = 6, 2

// checkServer refuses a server that is too old or that may forget what it was told.
func checkServer(ctx context.Context, rdb redis.UniversalClient, allowVolatile bool) error {
	text, err := rdb.Info(ctx).Result()
	if err != nil {
		return fmt.Errorf("store: cannot reach the server: %w", err)
	}
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[key] = value
		}
	}
	var major, minor int
	if _, err := fmt.Sscanf(info["redis_version"], "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("store: the server does not say its version (redis_version is %q)", info["redis_version"])
	}
	if major < minMajor || major == minMajor && minor < minMinor {
		return fmt.Errorf("store: the server is Redis %s; %d.%d or newer is needed", info["redis_version"], minMajor, minMinor)
	}
	if allowVolatile {
		return nil
	}
	var missing []string
	if info["aof_enabled"] != "1" {
		missing = append(missing, "appendonly yes")
	}
	if policy := info["maxmemory_policy"]; policy != "noeviction" {
		missing = append(missing, "maxmemory-policy noeviction (it is "+policy+")")
	}
	if len(missing) > 0 {
		return fmt.Errorf("store: the server may lose data: set %s in redis.conf, or with CONFIG SET; or say store.allow_volatile: \"data may be lost\"", strings.Join(missing, " and "))
	}
	return nil
}
