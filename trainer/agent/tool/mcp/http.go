package mcp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"github.com/mgrpo/mgrpo/trainer/internal/retry"
)

const maxMCPResponse = 16 << 20 // bytes of one HTTP response

// busyKey is the key of a context value that is set if a server replies that it is busy or failing. The client's errors
// do not contain the time that the server asks to wait.
type busyKey struct{}

// checkRedirect follows redirects on the configured server, as from /mcp to /mcp/, and refuses others, so that the token is sent only to
// that server. It also refuses a redirect that turns a POST into a GET (301, 302 and 303), because the message would be lost.
func checkRedirect(r *http.Request, via []*http.Request) error {
	const most = 5
	from := via[0]
	if r.Method == from.Method && r.URL.Scheme == from.URL.Scheme && r.URL.Host == from.URL.Host && len(via) <= most {
		return nil
	}
	return fmt.Errorf("the server redirects to %s://%s%s: give its final address", r.URL.Scheme, r.URL.Host, r.URL.EscapedPath())
}

// boundedTransport adds the token, limits the size of a response, and preserves the numbers of structured content.
type boundedTransport struct{ token string }

func (t boundedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if t.token != "" {
		r.Header.Set("Authorization", "Bearer "+t.token)
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if busy, ok := r.Context().Value(busyKey{}).(**retry.Transient); ok && !errors.As(retry.Refusal(response, errors.New(response.Status)), busy) {
		*busy = nil
	}
	response.Body = &boundedBody{response.Body, maxMCPResponse}
	switch kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind {
	case "text/event-stream":
		response.Body = &losslessEvents{Closer: response.Body, in: bufio.NewReader(response.Body)}
	case "application/json":
		response.Body = losslessBody(response.Body)
	}
	response.ContentLength = -1 // the body may be longer now
	return response, nil
}

type boundedBody struct {
	io.ReadCloser
	remaining int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.remaining <= 0 {
		return 0, fmt.Errorf("the server's response has more than %d bytes", maxMCPResponse)
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.remaining)])
	b.remaining -= n
	return n, err
}
