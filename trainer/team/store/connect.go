package store

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// silentLogger keeps the client from writing to standard error. The client returns the same errors.
type silentLogger struct{}

func (silentLogger) Printf(context.Context, string, ...any) {}

func init() { redis.SetLogger(silentLogger{}) }

// clientOptions makes the options of the Redis client. It refuses a server that anyone on the network could read and
// write.
func clientOptions(o Options) (*redis.UniversalOptions, error) {
	redisOpt, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	redisOpt.Username, redisOpt.Password = cmp.Or(o.Username, redisOpt.Username), cmp.Or(o.Password, redisOpt.Password)
	switch {
	case redisOpt.TLSConfig != nil:
		err = addCertificates(redisOpt.TLSConfig, o)
	case redisOpt.Password == "" && !o.AllowInsecure:
		redisOpt.Dialer = dialLocal
		for _, addr := range redisOpt.Addrs {
			err = errors.Join(err, checkLocal(addr))
		}
	}
	if err != nil {
		return nil, err
	}
	redisOpt.ContextTimeoutEnabled = true
	redisOpt.DisableIdentity = true
	redisOpt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	redisOpt.PoolTimeout = 30 * time.Second
	redisOpt.DialerRetries = 1 // Store.retry and Store.wait repeat failed operations within their deadlines
	return redisOpt, nil
}

// checkLocal returns an error for an address that is not on this machine. It is used for servers with neither TLS nor a
// password.
func checkLocal(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil || host == "" || host == "localhost" || net.ParseIP(host).IsLoopback() { // without a port: the path of a socket
		return nil
	}
	return fmt.Errorf("store: %s has neither TLS nor a password, and is not on this machine: use rediss://, set store.password_env, "+
		"or set store.allow_insecure: \"anyone may read and write\"", addr)
}

// dialLocal dials servers with neither TLS nor a password. It checks every address, because a Sentinel or a
// cluster names servers that are not in the URL.
func dialLocal(ctx context.Context, network, addr string) (net.Conn, error) {
	if err := checkLocal(addr); err != nil {
		return nil, err
	}
	return (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 5 * time.Minute}).DialContext(ctx, network, addr)
}

// parseURL reads the URL of a single server, of Sentinels (with master_name) or of a cluster (with addr or
// cluster=true).
func parseURL(text string) (*redis.UniversalOptions, error) {
	u, err := url.Parse(text)
	if err != nil { // the parser's error would print the text, which may hold a password
		return nil, errors.New("store: store.url is not a URL: want redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix:///SOCKET")
	}
	redisOpt, err := parseParts(u)
	if err != nil {
		return nil, fmt.Errorf("store: store.url: %w", err)
	}
	return redisOpt, nil
}

func parseParts(u *url.URL) (*redis.UniversalOptions, error) {
	redisOpt := &redis.UniversalOptions{Username: u.User.Username()}
	redisOpt.Password, _ = u.User.Password()
	if u.Opaque != "" {
		return nil, fmt.Errorf("want %s://, found %[1]s: without two slashes", u.Scheme)
	}
	if u.Scheme == "unix" {
		if u.Host != "" {
			return nil, fmt.Errorf("want unix:///SOCKET with three slashes and an absolute path, found unix://%s%s", u.Host, u.Path)
		}
		socket, err := redis.ParseURL(u.String())
		if err != nil {
			return nil, err
		}
		redisOpt.Addrs, redisOpt.DB = []string{socket.Addr}, socket.DB
		return redisOpt, nil
	}
	if u.Scheme != "redis" && u.Scheme != "rediss" {
		return nil, fmt.Errorf("want redis://, rediss:// or unix://, found %s://", u.Scheme)
	}
	if u.Scheme == "rediss" {
		redisOpt.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	first, err := serverAddr(cmp.Or(u.Host, "localhost"))
	if err != nil {
		return nil, err
	}
	redisOpt.Addrs = []string{first}
	if db := strings.Trim(u.Path, "/"); db != "" {
		n, err := strconv.Atoi(db)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%q is not the number of a database", db)
		}
		redisOpt.DB = n
	}
	if err := parseParameters(redisOpt, u.Query()); err != nil {
		return nil, err
	}
	if redisOpt.MasterName != "" && redisOpt.IsClusterMode {
		return nil, errors.New("master_name is for Sentinels and cluster=true for a cluster: remove one of the two")
	}
	if clustered := redisOpt.IsClusterMode || len(redisOpt.Addrs) > 1 && redisOpt.MasterName == ""; clustered && redisOpt.DB != 0 {
		return nil, fmt.Errorf("a cluster has only the database 0: remove /%d", redisOpt.DB)
	}
	return redisOpt, nil
}

// parseParameters reads the parameters of a URL into the options.
func parseParameters(redisOpt *redis.UniversalOptions, query url.Values) error {
	for key, values := range query {
		switch key {
		case "addr":
			for _, value := range values {
				addr, err := serverAddr(value)
				if err != nil {
					return fmt.Errorf("addr: %w", err)
				}
				redisOpt.Addrs = append(redisOpt.Addrs, addr)
			}
		case "master_name":
			if redisOpt.MasterName = values[0]; values[0] == "" {
				return errors.New("master_name is empty: want the name that the Sentinels give to the master")
			}
		case "cluster":
			if values[0] != "true" && values[0] != "false" {
				return fmt.Errorf("cluster is %q: want true or false", values[0])
			}
			redisOpt.IsClusterMode = values[0] == "true"
		default:
			return fmt.Errorf("unknown parameter %q; addr, master_name and cluster are known", key)
		}
	}
	return nil
}

// serverForm matches HOST, HOST:PORT, :PORT, [IPV6] and [IPV6]:PORT. An IPv6 address may have a zone, such as fe80::1%eth0.
var serverForm = regexp.MustCompile(`^(?:\[([0-9A-Fa-f:.]+(?:%[^\[\]]+)?)\]|([^\s,:/?#@%\[\]]*))(?::([0-9]*))?$`)

// serverAddr completes the address of a server. An absent host is localhost, and an absent port 6379.
func serverAddr(text string) (string, error) {
	parts := serverForm.FindStringSubmatch(text)
	if parts == nil || text == "" {
		return "", fmt.Errorf("%q is not the address of one server: want HOST:PORT, and an addr=HOST:PORT for each further server", text)
	}
	port := cmp.Or(parts[3], "6379")
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", fmt.Errorf("%q: %s is not the number of a port", text, port)
	}
	return net.JoinHostPort(cmp.Or(parts[1], parts[2], "localhost"), port), nil
}

// addCertificates completes the settings of TLS. If o.TLS.ServerName is empty, a server's certificate must contain the host
// name that was dialled, which may differ from the URL's host.
func addCertificates(c *tls.Config, o Options) error {
	c.ServerName = o.TLS.ServerName
	if o.TLS.CAFile != "" {
		pem, err := os.ReadFile(o.TLS.CAFile)
		if err != nil {
			return fmt.Errorf("store: tls.ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("store: tls.ca: %s does not contain a certificate in PEM format", o.TLS.CAFile)
		}
	}
	if o.TLS.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(o.TLS.CertFile, o.TLS.KeyFile)
		if err != nil {
			return fmt.Errorf("store: tls.cert, tls.key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return nil
}

// checkTLS returns an error if the first server in the URL uses TLS and the URL does not, or the other way round. If the server does
// not answer, it returns nil.
func checkTLS(ctx context.Context, redisOpt *redis.UniversalOptions) error {
	addr := redisOpt.Addrs[0]
	host, _, err := net.SplitHostPort(addr)
	if err != nil { // the path of a socket
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	plain := answersPlainly(ctx, addr)
	switch {
	case plain && redisOpt.TLSConfig != nil:
		return fmt.Errorf("%s answers without TLS: write redis:// in store.url instead of rediss://, or name the server's TLS port", addr)
	case !plain && redisOpt.TLSConfig == nil && answersTLS(ctx, addr, host):
		return fmt.Errorf("%s wants TLS: write rediss:// in store.url instead of redis://", addr)
	}
	return nil
}

// answersPlainly reports whether a server answers a request in the protocol of Redis without TLS.
func answersPlainly(ctx context.Context, addr string) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	answer := make([]byte, 1)
	if _, err = conn.Write([]byte("PING\r\n")); err == nil {
		_, err = conn.Read(answer)
	}
	return err == nil && (answer[0] == '+' || answer[0] == '-')
}

// answersTLS reports whether a server answers a TLS handshake, even if its certificate is refused.
func answersTLS(ctx context.Context, addr, host string) bool {
	conn, err := (&tls.Dialer{Config: &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}}).DialContext(ctx, "tcp", addr)
	if err == nil {
		_ = conn.Close()
		return true
	}
	var certificate *tls.CertificateVerificationError
	var alert *net.OpError
	return errors.As(err, &certificate) || errors.As(err, &alert) && alert.Op == "remote error"
}

// The oldest version of Redis that has exclusive ranges (XRANGE) and ACL rules for channels.
const minMajor, minMinor = 6, 2

// checkServer returns an error if the server is too old or may lose data. In a cluster it checks all masters.
func checkServer(ctx context.Context, rdb redis.UniversalClient, allowVolatile bool) error {
	if c, ok := rdb.(*redis.ClusterClient); ok {
		return c.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error { return checkInfo(ctx, master, allowVolatile) })
	}
	return checkInfo(ctx, rdb, allowVolatile)
}

// checkInfo checks the version and settings of a server, from INFO.
func checkInfo(ctx context.Context, rdb redis.Cmdable, allowVolatile bool) error {
	text, err := rdb.Info(ctx).Result()
	if err != nil {
		return err
	}
	if strings.Contains(text, "\nloading:1") { // the server has not read its data yet
		return errLoading
	}
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[key] = value
		}
	}
	if info["redis_mode"] == "sentinel" {
		return errors.New("the server is a Sentinel: add ?master_name=NAME to store.url, with the name that it gives to the master")
	}
	var major, minor int
	if _, err := fmt.Sscanf(info["redis_version"], "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("the server does not report its version (redis_version is %q)", info["redis_version"])
	}
	if major < minMajor || major == minMajor && minor < minMinor {
		return fmt.Errorf("the server is Redis %s; %d.%d or newer is needed", info["redis_version"], minMajor, minMinor)
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
		return fmt.Errorf("the server may lose data: set %s in redis.conf, or with CONFIG SET; or set store.allow_volatile: \"data may be lost\"",
			strings.Join(missing, " and "))
	}
	return nil
}
