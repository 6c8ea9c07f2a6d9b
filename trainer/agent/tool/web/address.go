package web

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// special are blocks of addresses that are not publicly reachable, or that contain such addresses in another notation
// (IANA's registries of special-purpose addresses, RFC 6890). net/netip recognises further blocks.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),        // this network
	netip.MustParsePrefix("100.64.0.0/10"),    // shared with a provider's customers
	netip.MustParsePrefix("168.63.129.16/32"), // a cloud's host, to its guests
	netip.MustParsePrefix("192.0.0.0/24"),     // protocol assignments
	netip.MustParsePrefix("192.0.2.0/24"),     // documentation
	netip.MustParsePrefix("192.88.99.0/24"),   // relays of 6to4
	netip.MustParsePrefix("198.18.0.0/15"),    // benchmarks
	netip.MustParsePrefix("198.51.100.0/24"),  // documentation
	netip.MustParsePrefix("203.0.113.0/24"),   // documentation
	netip.MustParsePrefix("240.0.0.0/4"),      // reserved, broadcast
	netip.MustParsePrefix("::/96"),            // IPv4-compatible
	netip.MustParsePrefix("::ffff:0:0:0/96"),  // IPv4-translated
	netip.MustParsePrefix("64:ff9b::/96"),     // IPv4 behind a translator
	netip.MustParsePrefix("64:ff9b:1::/48"),   // the same, local
	netip.MustParsePrefix("100::/64"),         // discard
	netip.MustParsePrefix("2001::/23"),        // protocol assignments, Teredo
	netip.MustParsePrefix("2001:db8::/32"),    // documentation
	netip.MustParsePrefix("2002::/16"),        // 6to4
	netip.MustParsePrefix("3fff::/20"),        // documentation
	netip.MustParsePrefix("5f00::/16"),        // segment routing
	netip.MustParsePrefix("fec0::/10"),        // site-local
}

// public reports whether an address belongs to a host of the public Internet.
func public(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.IsPrivate() && !slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(a) })
}

// addressError is the refusal to connect to an address.
type addressError struct{ address netip.Addr }

func (e *addressError) Error() string {
	return fmt.Sprintf("%s is not a public address, and it is not in an allowed network", e.address)
}

// dialControl returns the Control function of a net.Dialer that connects only to public addresses and to addresses of the
// allowed networks. It checks the actual address of each connection, regardless of earlier name lookups and redirects.
func dialControl(allowed []netip.Prefix) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("%q: %w", address, err)
		}
		a := at.Addr().Unmap().WithZone("")
		if public(a) || slices.ContainsFunc(allowed, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return nil
		}
		return &addressError{a}
	}
}

// guardedTransport makes only connections that guard allows. It uses no proxy, because a proxy would look up names and
// connect by itself.
func guardedTransport(allowed []netip.Prefix, names *net.Resolver) *http.Transport {
	const (
		connecting = 10 * time.Second
		maxHeaders = 64 << 10
		maxIdle    = 4
	)
	dialer := &net.Dialer{Timeout: connecting, Resolver: names, Control: dialControl(allowed)}
	return &http.Transport{
		DialContext: dialer.DialContext, TLSHandshakeTimeout: connecting, MaxResponseHeaderBytes: maxHeaders,
		MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true,
	}
}
