package redisserver

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
)

// TestServer: a durable server keeps its data when it is killed and started again, with and without TLS. Remove deletes its folder.
func TestServer(t *testing.T) {
	for name, start := range map[string]func(...string) (*Server, error){"without TLS": Start, "with TLS": StartTLS} {
		t.Run(name, func(t *testing.T) {
			s, err := start(Durable...)
			if err != nil {
				t.Fatal(err)
			}
			c := s.Client()
			defer c.Close()
			if err := c.Set(t.Context(), "key", "value", 0).Err(); err != nil {
				t.Fatal(err)
			}
			s.Kill()
			if err := s.Start(); err != nil {
				t.Fatal(err)
			}
			one := redis.NewClient(&redis.Options{Network: "unix", Addr: s.Socket()})
			defer one.Close()
			if got, err := one.Get(t.Context(), "key").Result(); got != "value" {
				t.Errorf("after the restart: got %q, want value; error %v", got, err)
			}
			s.Remove()
			if _, err := os.Stat(s.Dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("after Remove: folder %s still exists, or error %v", s.Dir, err)
			}
		})
	}
}

// TestCertificate: a client that trusts the server's certificate can connect to 127.0.0.1.
func TestCertificate(t *testing.T) {
	s, err := StartTLS()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Remove()
	pem, err := os.ReadFile(s.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	c, err := tls.Dial("tcp", s.Addr(), &tls.Config{RootCAs: roots})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}
