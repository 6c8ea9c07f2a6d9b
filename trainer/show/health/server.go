package health

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/mgrpo/mgrpo/trainer/internal/secret"
)

// Limits on the resources of clients.
const (
	maxHeaderBytes = 8 << 10
	maxScrapes     = 4                // simultaneous requests for /metrics
	requestTime    = 5 * time.Second  // time for the client to send a request, without the body if its handler is mounted
	answerTime     = 10 * time.Second // time for the client to read the answer, unless its handler is mounted
	idleTime       = time.Minute
)

// maxConnections is the largest number of connections at once. Each program in flight has one or two.
var maxConnections = 8192

// Server answers requests about one process. It is a metrics.Observer, and receives its workers from Joined.
type Server struct {
	processState
	scheme   string // http or https
	listener net.Listener
	routes   *http.ServeMux
	http     *http.Server
	served   chan error
}

// Listen starts a server. Without a token it accepts only a loopback address.
func Listen(o Options) (*Server, error) {
	if o.Token != "" {
		if err := checkToken(o.Token); err != nil {
			return nil, fmt.Errorf("health: %w", err)
		}
	}
	l, err := net.Listen("tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("health: %w", refusedAddress(o.Address, err))
	}
	if addr, ok := l.Addr().(*net.TCPAddr); o.Token == "" && !(ok && addr.IP.IsLoopback()) {
		return nil, errors.Join(fmt.Errorf("health: %s can be reached from other machines: set a token, or use a loopback address such as 127.0.0.1:PORT",
			l.Addr()), l.Close())
	}
	s := &Server{processState: newProcessState(o), scheme: "http", listener: netutil.LimitListener(l, maxConnections), routes: http.NewServeMux(),
		served: make(chan error, 1)}
	if o.TLS != nil {
		s.scheme, s.listener = "https", tls.NewListener(s.listener, o.TLS)
	}
	s.routes.Handle("/", s.handler(o.Token))
	s.http = &http.Server{
		Handler:           s.routes,
		ReadHeaderTimeout: requestTime,
		ReadTimeout:       requestTime,
		WriteTimeout:      answerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          log.New(io.Discard, "", 0), // malformed requests are not logged
	}
	go func() { s.served <- s.http.Serve(s.listener) }()
	return s, nil
}

// refusedAddress returns an error that explains why the server cannot listen at an address, and which address to use
// instead.
func refusedAddress(address string, why error) error {
	host, _, malformed := net.SplitHostPort(address)
	var form *net.AddrError
	var name *net.DNSError // the host is unknown, or the port is not a number
	switch {
	case malformed != nil, errors.As(why, &form), errors.As(why, &name) && name.Name != host:
		return fmt.Errorf("%q is not an address to listen on: use HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:8000", address)
	case name != nil, errors.Is(why, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%q is not an address of this machine: use one of its addresses, such as 127.0.0.1, or 0.0.0.0 for all of them", host)
	case errors.Is(why, syscall.EADDRINUSE):
		return fmt.Errorf("another program already listens on %s: use a different port for every process of a machine, or 0 for any free port", address)
	case errors.Is(why, syscall.EACCES):
		return fmt.Errorf("this user is not allowed to listen on %s: use a port from 1024 up", address)
	}
	return why
}

// Handle mounts another package's handler at a pattern of http.ServeMux. It panics if the pattern is
// already used. Handlers may be mounted while the server runs. The server's token does not protect
// them: a handler must check permissions itself. It must also limit the bodies that it reads. It has
// no time limits except those that it sets with http.ResponseController. Handle ignores a nil Server.
func (s *Server) Handle(pattern string, h http.Handler) {
	if s == nil {
		return
	}
	s.routes.Handle(pattern, withoutTimeLimits(h))
}

// withoutTimeLimits removes the time limits while a handler runs, since a read limit would also cancel the handler's context. The
// limits apply again to the rest of the request's body and of the answer.
func withoutTimeLimits(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		until := func(read, written time.Time) { _ = errors.Join(c.SetReadDeadline(read), c.SetWriteDeadline(written)) }
		until(time.Time{}, time.Time{})
		defer func() { until(time.Now().Add(requestTime), time.Now().Add(answerTime)) }()
		h.ServeHTTP(w, r)
	})
}

// checkToken returns an error for tokens that can be guessed or that a header cannot carry.
func checkToken(token string) error {
	if len(token) < MinToken {
		return fmt.Errorf("a token of %d bytes can be guessed; use %d or more, for example from: openssl rand -hex 32", len(token), MinToken)
	}
	if strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return errors.New("a token must be printable ASCII without spaces")
	}
	return nil
}

// URL returns the URL of the server, without a path, as programs on this machine open it.
func (s *Server) URL() string { return s.scheme + "://" + Local(s.listener.Addr().String()) }

// URLs returns the URL of a path of the server for people. If the server listens at all addresses of the machine, the text has
// the URL for this machine and the one for others, with the name of this machine.
func (s *Server) URLs(path string) string {
	text, at := s.URL()+path, s.listener.Addr().String()
	if name, err := os.Hostname(); err == nil && Local(at) != at {
		_, port, _ := net.SplitHostPort(at)
		text += ", from other machines " + s.scheme + "://" + net.JoinHostPort(name, port) + path
	}
	return text
}

// Local returns the address HOST:PORT at which this machine opens a server that listens at an address. If the server listens at
// all addresses of the machine, this is the loopback address, because programs and browsers cannot open [::].
func Local(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}

// Close ends the server. Requests in progress have one second to end. It ignores a nil Server.
func (s *Server) Close() error {
	if s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	if served := <-s.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// handler answers requests for the three paths. If there is a token, requests must have it.
func (s *Server) handler(token string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+AlivePath, checkHandler(s.alive))
	mux.HandleFunc("GET "+ReadyPath, checkHandler(s.ready))
	all := prometheus.NewRegistry() // of the run, the Go runtime and the process
	all.MustRegister(&s.processState, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux.Handle("GET "+MetricsPath, promhttp.HandlerFor(all, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	if token == "" {
		return mux
	}
	return guard(token, mux)
}

// checkHandler answers with the faults that wrong lists, one per line, or with ok.
func checkHandler(wrong func(context.Context) []string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		lines := wrong(r.Context())
		if len(lines) == 0 {
			lines = []string{"ok"}
		} else {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintln(w, strings.Join(lines, "\n"))
	}
}

// guard accepts only requests with the token.
func guard(token string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !secret.Equal(r.Header.Get("Authorization"), "Bearer "+token) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a token is needed: Authorization: Bearer TOKEN", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
