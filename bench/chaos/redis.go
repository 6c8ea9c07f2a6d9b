package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/team/store/redisserver"
)

const (
	passwordEnv = "MGRPO_CHAOS_PASSWORD"
	admin       = "checker" // user that may read the record
	lease       = time.Second
)

// server is a redis-server with TLS and the users of the run. Its data survive a kill.
type server struct {
	dir, conf string
	port      string
	cert, key string
	password  string // password of all users
	cmd       *exec.Cmd
}

// startRedis makes a server's certificate, users and settings, and starts it.
func startRedis(ctx context.Context, t *team) (*server, error) {
	r := &server{dir: t.path("redis"), conf: t.path("redis.conf"), password: rand.Text()}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return nil, err
	}
	var err error
	if r.port, err = redisserver.FreePort(); err != nil {
		return nil, err
	}
	if r.cert, r.key, err = redisserver.Certify(r.dir); err != nil {
		return nil, err
	}
	users, err := r.users(ctx, t)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(t.path("users.acl"), []byte(users), 0o600); err != nil {
		return nil, err
	}
	conf := []string{"bind 127.0.0.1", "port 0", "tls-port " + r.port, "tls-cert-file " + r.cert, "tls-key-file " + r.key,
		"tls-ca-cert-file " + r.cert, "tls-auth-clients no", "aclfile " + t.path("users.acl"), "dir " + r.dir, "logfile " + t.path("redis.log"),
		`save ""`, "appendonly yes", "appendfsync always", "maxmemory-policy noeviction"}
	if err := os.WriteFile(r.conf, []byte(strings.Join(conf, "\n")+"\n"), 0o600); err != nil {
		return nil, err
	}
	return r, r.start()
}

// users returns the lines of the ACL file: the output of mgrpo store acl, and the user that reads the record.
func (r *server) users(ctx context.Context, t *team) (string, error) {
	args := []string{"store", "acl", t.config(), "--file"}
	for _, s := range r.settings() {
		args = append(args, "--set", s)
	}
	cmd := exec.CommandContext(ctx, t.program(), args...)
	cmd.Env = append(os.Environ(), passwordEnv+"="+r.password)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("mgrpo store acl: %w", err)
	}
	return fmt.Sprintf("%suser %s on #%x ~mgrpo:{%s}:record +xrange\n", out, admin, sha256.Sum256([]byte(r.password)), runName), nil
}

// settings returns the workers' settings of the store. With them an invocation is never given up, because here workers do not die because
// of an invocation.
func (r *server) settings() []string {
	return []string{"store.url=" + r.url(false), "store.password_env=" + passwordEnv, "store.tls.ca=" + r.cert,
		"store.lease=" + lease.String(), "store.timeout=10m", "store.max_deliveries=1000000"}
}

// url returns the server's URL, for workers or for the checker.
func (r *server) url(checker bool) string {
	u := url.URL{Scheme: "rediss", Host: "127.0.0.1:" + r.port}
	if checker {
		u.User = url.UserPassword(admin, r.password)
	}
	return u.String()
}

// start starts the server. Workers wait until it answers.
func (r *server) start() error {
	r.cmd = exec.Command("redis-server", r.conf)
	return r.cmd.Start()
}

func (r *server) stop() {
	r.cmd.Process.Kill()
	r.cmd.Wait()
}
