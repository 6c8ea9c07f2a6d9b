package launch

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
)

// errKey means that the other end of a connection has proven that its key is a different one.
var errKey = errors.New("its key differs from this machine's, or it is not a worker of mgrpo: check machines.key_env or key_file, and machines.address")

// secured returns a TLS 1.3 configuration with which both ends of a connection between an agent's machines prove that
// they have the same key. Each end derives a key pair from the key and shows a certificate of that pair. No authority
// signs the certificates, and their names and dates have no meaning.
func secured(key []byte) (*tls.Config, error) {
	seed, err := hkdf.Key(sha256.New, key, nil, "mgrpo: machines of an agent", ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	pair := ed25519.NewKeyFromSeed(seed)
	public := pair.Public().(ed25519.PublicKey)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, public, pair)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: pair}},
		ClientAuth:   tls.RequireAnyClientCert,
		// Authorities and names are not checked; VerifyConnection compares the key, and the handshake proves it.
		InsecureSkipVerify:     true,
		SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) > 0 {
				if theirs, ok := s.PeerCertificates[0].PublicKey.(ed25519.PublicKey); ok && bytes.Equal(theirs, public) {
					return nil
				}
			}
			return errKey
		},
	}, nil
}

// program returns a digest of the running program's file. Followers accept only orders of the same program.
var program = sync.OnceValues(func() (string, error) {
	f, err := durable.Digest("/proc/self/exe")
	if err != nil {
		return "", err
	}
	return f.SHA256[:32], nil
})

// keepAlive returns settings with which the kernel closes a connection if the other end has not answered for a lease.
func keepAlive(lease time.Duration) net.KeepAliveConfig {
	const looks = 3
	every := max(lease/looks, time.Second)
	return net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: looks}
}

// abandonAfter makes writes fail if the other end has acknowledged no data for a lease.
func abandonAfter(conn net.Conn, lease time.Duration) error {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(lease.Milliseconds()))
	})
	return errors.Join(err, failed)
}

// addressOf returns the address of one end of a connection, without its port.
func addressOf(at net.Addr) string {
	return at.(*net.TCPAddr).AddrPort().Addr().Unmap().WithZone("").String()
}
