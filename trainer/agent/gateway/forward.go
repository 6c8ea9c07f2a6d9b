package gateway

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
)

// forward passes the request on to the worker of its agent. at is the anchor of a new conversation.
func (in incoming) forward(name string, at anchor) error {
	// A worker that receives another worker's request for a third agent was reached at a wrong address.
	if in.round.Address == nil || in.r.Header.Get(forwardedHeader) != "" {
		return refuse(404, "model_not_found", "%s does not work here; is gateway.advertise the address of its own worker?", name)
	}
	to, err := in.round.Address(in.r.Context(), name)
	if err != nil {
		return busy("%s: %v", name, err)
	}
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(to)
			p.Out.URL.Path = to.Path + p.In.URL.Path[strings.LastIndex(p.In.URL.Path, "/v1/"):]
			p.Out.URL.RawPath = ""
			p.Out.Header.Set("Authorization", "Bearer "+in.key)
			p.Out.Header.Set(forwardedHeader, "1")
			p.Out.Header.Set(anchorHeader, strconv.Itoa(at.Turn)+"."+strconv.Itoa(at.Call))
			p.Out.Body, p.Out.ContentLength = io.NopCloser(bytes.NewReader(in.body)), int64(len(in.body))
		},
		Transport: in.round.Transport, FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			busy("%s's worker at %s does not answer: %v", name, to.Host, err).write(w)
		},
	}
	proxy.ServeHTTP(in.w, in.r)
	return nil
}
