package gateway

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
)

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
func (u Upstream) serve(in incoming) error {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(in.body, &fields); err != nil {
		return refuse(400, "invalid_request", "the body: %v", err)
	}
	fields["model"], _ = json.Marshal(u.Model)
	body, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			path := p.In.URL.Path
			p.Out.URL = u.URL.JoinPath(path[strings.LastIndex(path, "/v1/")+len("/v1"):])
			p.Out.Host = ""
			for _, name := range []string{"Authorization", "Cookie", callHeader, anchorHeader, forwardedHeader} {
				p.Out.Header.Del(name)
			}
			if u.Key != "" {
				p.Out.Header.Set("Authorization", "Bearer "+u.Key)
			}
			p.Out.Body, p.Out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		},
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			busy("the server of %s at %s does not answer: %v", u.Model, u.URL.Host, err).write(w)
		},
	}
	proxy.ServeHTTP(in.w, in.r)
	return nil
}
