package track

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
)

const (
	maxReply   = 16 << 20 // bytes; a run has a few hundred metrics
	replyLimit = time.Minute
	retries    = 7 // the same number as MLflow's own client
	firstWait  = time.Second
	longWait   = time.Minute
)

// api is a client for the REST API of an MLflow tracking server.
type api struct {
	base   *url.URL
	client *http.Client
	sign   func(*http.Request)
	wait   func(context.Context, time.Duration) bool
}

// newAPI reads the environment variables of MLflow's own client.
func newAPI(env func(string) string, wait func(context.Context, time.Duration) bool) (api, error) {
	const wanted = "MLFLOW_TRACKING_URI, such as http://127.0.0.1:5000"
	text := env("MLFLOW_TRACKING_URI")
	if text == "" {
		return api{}, errors.New("no server is given: set " + wanted)
	}
	base, err := url.Parse(strings.TrimRight(text, "/"))
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return api{}, errors.New("not the address of a tracking server: set " + wanted)
	}
	sign := func(*http.Request) {}
	if token := env("MLFLOW_TRACKING_TOKEN"); token != "" {
		sign = func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	}
	if user, password := env("MLFLOW_TRACKING_USERNAME"), env("MLFLOW_TRACKING_PASSWORD"); user != "" && password != "" { // has priority, as in MLflow's client
		sign = func(r *http.Request) { r.SetBasicAuth(user, password) }
	}
	return api{base: base, client: &http.Client{Timeout: replyLimit}, sign: sign, wait: wait}, nil
}

// transient marks an error after which another attempt may succeed.
type transient struct{ error }

func (t *transient) Unwrap() error { return t.error }

// retry calls f until it succeeds, fails with an error that is not transient, or was called retries+1 times.
func (a api) retry(ctx context.Context, f func() error) error {
	for attempt := 0; ; attempt++ {
		err := f()
		var again *transient
		switch {
		case err == nil || !errors.As(err, &again):
			return err
		case attempt == retries:
			return fmt.Errorf("after %d attempts: %w", attempt+1, err)
		}
		d := min(firstWait<<attempt, longWait)
		if !a.wait(ctx, d/2+rand.N(d/2)) {
			return fmt.Errorf("%w, last: %v", ctx.Err(), err)
		}
	}
}

func (a api) get(ctx context.Context, path string, query url.Values, reply any) error {
	return a.call(ctx, http.MethodGet, path, query, nil, reply)
}

func (a api) post(ctx context.Context, path string, body map[string]any, reply any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return a.call(ctx, http.MethodPost, path, nil, text, reply)
}

// call makes one request. If reply is nil, the content of the reply is ignored.
func (a api) call(ctx context.Context, method, path string, query url.Values, body []byte, reply any) error {
	u := a.base.JoinPath("api/2.0/mlflow", path)
	u.RawQuery = query.Encode()
	r, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	a.sign(r)
	response, err := a.client.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &transient{err}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxReply+1))
	switch {
	case err != nil:
		return &transient{fmt.Errorf("%s: %w", path, err)}
	case len(text) > maxReply:
		return fmt.Errorf("%s: the reply is longer than %d bytes", path, maxReply)
	case response.StatusCode != http.StatusOK:
		return refused(path, response.StatusCode, text)
	case reply == nil:
		return nil
	}
	if err := json.Unmarshal(text, reply); err != nil {
		return fmt.Errorf("%s: the reply does not come from MLflow: %w: %s", path, err, excerpt(text))
	}
	return nil
}

// refusal is a reply with a status other than 200.
type refusal struct {
	path   string
	status int
	Code   string `json:"error_code"` // "": the reply does not come from MLflow
	Text   string `json:"message"`
}

func (r *refusal) Error() string {
	return fmt.Sprintf("%s: status %d: %s", r.path, r.status, strings.TrimSpace(r.Code+" "+r.Text))
}

func refused(path string, status int, text []byte) error {
	r := &refusal{path: path, status: status}
	if json.Unmarshal(text, r) != nil || r.Code == "" {
		r.Code = ""
		r.Text = cmp.Or(excerpt(text), http.StatusText(status))
	} else {
		r.Code, r.Text = excerpt([]byte(r.Code)), excerpt([]byte(r.Text))
	}
	switch {
	case status == http.StatusRequestTimeout, status == http.StatusTooManyRequests, status >= 500 && status != http.StatusNotImplemented:
		return &transient{r}
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return fmt.Errorf("%w; set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD", r)
	}
	return r
}

// excerpt returns the beginning of a foreign text, for a message.
func excerpt(text []byte) string {
	const most = 300
	clean := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, string(text[:min(len(text), most)]))
	return strings.Join(strings.Fields(clean), " ")
}
