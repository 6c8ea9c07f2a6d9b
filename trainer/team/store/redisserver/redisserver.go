// Package redisserver starts redis-server processes on the loopback, for tests and benchmarks.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package redisserver

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
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// Durable holds settings with which every write is on disk before the server answers it.
var Durable = []string{"--save", "", "--appendonly", "yes", "--appendfsync", "always"}

// Server is a redis-server on a port of 127.0.0.1. It may be killed and started again. Its data and its log, the file
// "log", are in Dir.
type Server struct {
	Dir, Port string
	CertFile  string   // PEM file of its self-signed certificate; "": it has no TLS
	Args      []string // further settings
	Cmd       *exec.Cmd
}

// Start starts a server, or with --sentinel a Sentinel, in a new folder, and waits until it answers.
func Start(args ...string) (*Server, error) { return start(false, args) }

// StartTLS starts a server that accepts only TLS.
func StartTLS(args ...string) (*Server, error) { return start(true, args) }

func start(withTLS bool, args []string) (s *Server, err error) {
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		return nil, err
	}
	s = &Server{Dir: dir, Args: args}
	defer func() {
		if err != nil {
			s.Remove()
		}
	}()
	if s.Port, err = FreePort(); err != nil {
		return nil, err
	}
	if withTLS {
		cert, key, err := Certify(dir)
		if err != nil {
			return nil, err
		}
		s.CertFile = cert
		s.Args = append(slices.Clone(args), "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	}
	return s, s.Start()
}

// Start starts the process, again after Kill, and waits until it answers.
func (s *Server) Start() error {
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	port := []string{"--port", s.Port}
	if s.CertFile != "" {
		port = []string{"--port", "0", "--tls-port", s.Port}
	}
	s.Cmd = exec.Command("redis-server", slices.Concat(s.Args, port, []string{"--bind", "127.0.0.1", "--dir", s.Dir, "--unixsocket", s.Socket()})...)
	s.Cmd.Stdout, s.Cmd.Stderr = log, log
	if err := s.Cmd.Start(); err != nil {
		return fmt.Errorf("%w: make setup-tests installs it", err)
	}
	return s.Await("answer", func(c *redis.Client) bool {
		err := c.Ping(context.Background()).Err()
		return err == nil || redis.HasErrorPrefix(err, "NOAUTH")
	})
}

// Await waits until reached returns true. what names the awaited state in the error.
func (s *Server) Await(what string, reached func(*redis.Client) bool) error {
	c := s.Client()
	defer c.Close()
	for range 1000 {
		if reached(c) {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	log, _ := os.ReadFile(s.log())
	return fmt.Errorf("redis-server %v: no %s:\n%s", s.Args, what, log)
}

// Client returns a connection of the default user. It does not repeat commands or check certificates.
func (s *Server) Client() *redis.Client {
	o := &redis.Options{Addr: s.Addr(), MaxRetries: -1, DialerRetries: 1}
	if s.CertFile != "" {
		o.TLSConfig = &tls.Config{InsecureSkipVerify: true} // the server was started by this process
	}
	return redis.NewClient(o)
}

// Kill ends the process as SIGKILL does.
func (s *Server) Kill() {
	if s.Cmd != nil && s.Cmd.Process != nil {
		s.Cmd.Process.Kill()
		s.Cmd.Wait()
	}
}

// Remove ends the process and deletes its files.
func (s *Server) Remove() {
	s.Kill()
	os.RemoveAll(s.Dir)
}

// Addr returns the server's host and port.
func (s *Server) Addr() string   { return "127.0.0.1:" + s.Port }
func (s *Server) Socket() string { return filepath.Join(s.Dir, "socket") }
func (s *Server) log() string    { return filepath.Join(s.Dir, "log") }

// URL returns the URL of the server, without a user.
func (s *Server) URL() string {
	if s.CertFile != "" {
		return "rediss://" + s.Addr()
	}
	return "redis://" + s.Addr()
}

// FreePort returns a port of 127.0.0.1 that is free; the next port is also free. The port is outside the range from which
// the kernel gives ports to clients: a client could take such a port before the server starts, or while it is down.
func FreePort() (string, error) {
	var err error
	for range 100 {
		const from, to = 10_000, 30_000
		port := from + mathrand.IntN(to-from)
		if err = errors.Join(tryPort(port), tryPort(port+1)); err == nil {
			return strconv.Itoa(port), nil
		}
	}
	return "", err
}

func tryPort(port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return l.Close()
}

// Certify writes a self-signed certificate for 127.0.0.1 and its key into dir, as PEM files.
func Certify(dir string) (cert, key string, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mgrpo test"}, NotAfter: time.Now().Add(24 * time.Hour),
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
