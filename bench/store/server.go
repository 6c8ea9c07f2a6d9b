package store

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	shared "github.com/mgrpo/mgrpo/trainer/store"
)

// server is a redis-server on the loopback that writes every change to disk before it answers.
type server struct {
	dir     string
	cmd     *exec.Cmd
	admin   *redis.Client
	options shared.Options // of a store on it
}

// settings of the server besides its port.
var settings = []string{"--save", "", "--appendonly", "yes", "--appendfsync", "always"}

func startServer(ctx context.Context, withTLS bool) (s *server, err error) {
	dir, err := os.MkdirTemp("", "mgrpo-bench-store")
	if err != nil {
		return nil, err
	}
	s = &server{dir: dir}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	s.options = shared.Options{Run: "bench", URL: "redis://" + addr, Timeout: time.Minute}
	client := &redis.Options{Addr: addr}
	args := append(settings, "--dir", dir, "--bind", "127.0.0.1")
	if withTLS {
		cert, key, err := writeCertificate(dir)
		if err != nil {
			return nil, err
		}
		args = append(args, "--port", "0", "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
		s.options.URL, s.options.CAFile = "rediss://"+addr, cert
		client.TLSConfig = &tls.Config{InsecureSkipVerify: true} // its own server, to read INFO
	} else {
		args = append(args, "--port", port)
	}
	s.cmd = exec.CommandContext(ctx, "redis-server", args...)
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("redis-server: %w", err)
	}
	s.admin = redis.NewClient(client)
	for range 500 {
		if err = s.admin.Ping(ctx).Err(); err == nil {
			return s, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, fmt.Errorf("redis-server does not answer: %w", err)
}

func (s *server) stop() {
	if s.admin != nil {
		s.admin.Close()
	}
	if s.cmd != nil && s.cmd.Process != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
	}
	os.RemoveAll(s.dir)
}

// info reads fields of INFO.
func (s *server) info(ctx context.Context) (map[string]string, error) {
	text, err := s.admin.Info(ctx, "server", "memory", "stats", "cpu", "persistence").Result()
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			out[key] = value
		}
	}
	return out, nil
}

// number is a field of INFO as one; 0 where it is none.
func number(info map[string]string, key string) float64 {
	x, _ := strconv.ParseFloat(info[key], 64)
	return x
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// writeCertificate makes a certificate for the loopback that signs itself.
func writeCertificate(dir string) (cert, key string, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mgrpo bench store"}, NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return "", "", err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", err
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	return cert, key, errors.Join(
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
}
