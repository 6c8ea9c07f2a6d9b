// Package localhost recognises requests that browsers send to this machine for foreign pages.
package localhost

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// Named reports whether a host, with or without a port, is an address or a name that only local networks have: localhost, names without a
// dot, and names below localhost and internal. A request for another name may come from a foreign page whose name server resolves that name
// to this machine (DNS rebinding).
func Named(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	return err == nil || !strings.Contains(name, ".") || strings.HasSuffix(name, ".localhost") || strings.HasSuffix(name, ".internal")
}

// Foreign reports whether a request may come from a foreign page. It has another host then, or a browser has sent it for a page of another
// machine. Programs send no Origin.
func Foreign(r *http.Request) bool {
	if !Named(r.Host) || r.Header.Get("Sec-Fetch-Site") == "cross-site" {
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	page, err := url.Parse(origin)
	if err == nil && page.Scheme != "" && page.Scheme != "http" && page.Scheme != "https" {
		return false // a program that is made of pages, such as an editor's extension
	}
	return err != nil || page.Host != r.Host && !loopback(page.Hostname())
}

func loopback(host string) bool {
	return strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
}
