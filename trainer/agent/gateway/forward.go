package gateway

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
)

// proxy passes the request on with a body. rewrite sets its address and its headers. server names the other server for errors.
func (in clientRequest) proxy(server string, body []byte, transport http.RoundTripper, rewrite func(*httputil.ProxyRequest)) error {
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			rewrite(p)
			p.Out.Body, p.Out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		},
		Transport: transport, FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			tryAgainLater("%s does not answer: %v", server, err).write(w)
		},
	}
	proxy.ServeHTTP(in.w, in.r)
	return nil
}

// forward passes the request on to the worker of its agent. at is the anchor of a new conversation.
func (in clientRequest) forward(name string, at anchor) error {
	// A worker that receives another worker's request for a third agent was reached at a wrong address.
	if in.round.Address == nil || in.r.Header.Get(forwardedHeader) != "" {
		return refuse(404, "model_not_found", "%s does not work here; is gateway.advertise the address of its own worker?", name)
	}
	to, err := in.round.Address(in.r.Context(), name)
	if err != nil {
		return tryAgainLater("%s: %v", name, err)
	}
	return in.proxy(name+"'s worker at "+to.Host, in.body, in.round.Transport, func(p *httputil.ProxyRequest) {
		p.SetURL(to)
		p.Out.URL.Path = to.Path + p.In.URL.Path[strings.LastIndex(p.In.URL.Path, "/v1/"):]
		p.Out.URL.RawPath = ""
		p.Out.Header.Set("Authorization", "Bearer "+in.key)
		p.Out.Header.Set(forwardedHeader, "1")
		p.Out.Header.Set(anchorHeader, strconv.Itoa(at.Turn)+"."+strconv.Itoa(at.Call))
	})
}

// Upstream is a hosted model. Requests for its agent are passed on to an OpenAI-compatible API.
type Upstream struct {
	URL   *url.URL // base, such as https://host/v1
	Model string   // its name in that API
	Key   string   // its API key; "": none is sent
}

// upstream returns the hosted model that a request names, if any.
func (r *Round) upstream(body []byte) (to Upstream, ok bool) {
	if !r.Open || len(r.Hosted) == 0 {
		return to, false
	}
	var named struct {
		Model string `json:"model"`
	}
	if json.Unmarshal(body, &named) != nil {
		return to, false // the request's reader reports the error
	}
	to, ok = r.Hosted[named.Model]
	return to, ok
}

// serve passes a request on with the model's own name and key.
func (u Upstream) serve(in clientRequest) error {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(in.body, &fields); err != nil {
		return refuse(400, "invalid_request", "the body: %v", err)
	}
	fields["model"], _ = json.Marshal(u.Model)
	body, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	return in.proxy("the server of "+u.Model+" at "+u.URL.Host, body, nil, func(p *httputil.ProxyRequest) {
		path := p.In.URL.Path
		p.Out.URL = u.URL.JoinPath(path[strings.LastIndex(path, "/v1/")+len("/v1"):])
		p.Out.Host = ""
		for _, name := range []string{"Authorization", "Cookie", callHeader, anchorHeader, forwardedHeader} {
			p.Out.Header.Del(name)
		}
		if u.Key != "" {
			p.Out.Header.Set("Authorization", "Bearer "+u.Key)
		}
	})
}
