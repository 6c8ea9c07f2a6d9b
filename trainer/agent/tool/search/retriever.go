package search

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/internal/retry"
	"github.com/mgrpo/mgrpo/trainer/internal/secret"
	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

const (
	maxRetrieved = 8 << 20 // bytes of a service's reply
	maxDocuments = 4 << 20 // bytes of the text made from it
)

// Templates for the retriever that Search-R1 starts alongside training (POST /retrieve of its retrieval_server.py).
const (
	defaultRequest  = `{"queries": [{{json .Query}}], "topk": {{.Results}}, "return_scores": true}`
	defaultResponse = `{{range $i, $hit := index .result 0}}[{{inc $i}}] {{$d := $hit.document}}` +
		`{{if index $d "contents"}}{{text $d.contents}}{{else}}{{text $d.title}}{{"\n"}}{{text $d.text}}{{end}}{{"\n\n"}}{{end}}`
)

// RetrieverOptions configures an HTTP service that answers queries with documents.
type RetrieverOptions struct {
	URL      string
	TokenEnv string // environment variable with the bearer token; "": no token is sent
	Results  int    // number of documents per query

	// Templates of text/template. Request converts .Query and .Results into the request: JSON, sent with POST, or a
	// query string that begins with ?, sent with GET. Response converts the JSON of the reply into the text for the
	// model. In addition to the usual functions there are json, which writes a value as JSON, text, which requires a
	// string, and inc, which adds 1.
	Request, Response string // "": the defaults
}

// Retriever asks a service for documents.
type Retriever struct {
	tool.Tool
	cfg               RetrieverOptions
	token             string
	request, response *template.Template
	client            *http.Client
}

// NewRetriever returns the tool. It does not contact the service. The caller must call Close.
func NewRetriever(cfg RetrieverOptions) (*Retriever, error) {
	cfg.Request, cfg.Response = cmp.Or(cfg.Request, defaultRequest), cmp.Or(cfg.Response, defaultResponse)
	r := &Retriever{cfg: cfg}
	var err error
	if r.request, err = parseTemplate("request", cfg.Request); err != nil {
		return nil, err
	}
	if r.response, err = parseTemplate("response", cfg.Response); err != nil {
		return nil, err
	}
	if _, err := r.ask(`a "quoted" query`); err != nil {
		return nil, err
	}
	if r.token, err = secret.FromEnv("token_env", cfg.TokenEnv); err != nil {
		return nil, err
	}
	const maxIdle = 64
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // the token is meant only for this service
	r.client = &http.Client{CheckRedirect: stay, Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true}}
	r.Tool = tool.Func("search", "Searches documents and returns those that fit best.", "query", "What the wanted documents are about.", r.retrieve)
	return r, nil
}

// parseTemplate parses the template of a request or a response.
func parseTemplate(name, text string) (*template.Template, error) {
	return template.New(name).Option("missingkey=error").Funcs(template.FuncMap{
		"inc": func(i int) int { return i + 1 },
		"json": func(v any) (string, error) {
			b, err := json.Marshal(v)
			return string(b), err
		},
		"text": func(v any) (string, error) {
			s, ok := v.(string)
			if !ok {
				return "", fmt.Errorf("%T is not a text", v)
			}
			return s, nil
		},
	}).Parse(text)
}

// Service returns the name of the service and its settings, for a cache.
func (r *Retriever) Service() string {
	address, _, _ := strings.Cut(r.cfg.URL, "?")
	return fmt.Sprintf("retriever %s %s", address, tool.Fingerprint(r.cfg.URL, r.cfg.Request, r.cfg.Response, strconv.Itoa(r.cfg.Results)))
}

// Secrets returns the values that must not appear in the tool's output. They are meant for CallPolicy.Secrets.
func (r *Retriever) Secrets() []string { return []string{r.token} }

// Close closes the connections that are kept open.
func (r *Retriever) Close() error {
	r.client.CloseIdleConnections()
	return nil
}

func (r *Retriever) retrieve(ctx context.Context, query string) (string, error) {
	query, err := bounded(query)
	if err != nil {
		return "", err
	}
	request, err := r.ask(query)
	if err != nil {
		return "", tool.Failed(err)
	}
	response, body, err := retry.Attempt(ctx, r.client, request.WithContext(ctx), maxRetrieved)
	var again *retry.Transient
	switch {
	case err != nil && ctx.Err() != nil:
		return "", ctx.Err()
	case errors.As(err, &again):
		return "", &retry.Transient{Err: r.fault("%v", err)}
	case err != nil:
		return "", r.fault("%v", err)
	case response.StatusCode != http.StatusOK:
		return "", retry.Refusal(response, r.fault("HTTP %s: %s", response.Status, quoteBeginning(body)))
	}
	return r.read(body)
}

// ask returns the request for a query.
func (r *Retriever) ask(query string) (*http.Request, error) {
	var text bytes.Buffer
	if err := r.request.Execute(&text, struct {
		Query   string
		Results int
	}{query, r.cfg.Results}); err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	method, address := http.MethodPost, r.cfg.URL
	if parameters, ok := strings.CutPrefix(text.String(), "?"); ok {
		method = http.MethodGet
		between := "?"
		if strings.Contains(address, "?") {
			between = "&"
		}
		address += between + parameters
		text.Reset()
	} else if !json.Valid(text.Bytes()) {
		return nil, fmt.Errorf("request: the template turns the query %[2]q into %[1]s: it must make JSON (write the query as {{json .Query}}), or a "+
			"query string that begins with ?",
			quoteBeginning(text.Bytes()), query)
	}
	request, err := http.NewRequest(method, address, &text)
	if err != nil {
		return nil, fmt.Errorf("request: the template does not make a valid address from the query %q: write the query as {{urlquery .Query}}", query)
	}
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/json")
	}
	if r.token != "" {
		request.Header.Set("Authorization", "Bearer "+r.token)
	}
	return request, nil
}

// pythonNumbers matches strings, and the numbers that Python's json module writes although JSON does not have them.
var pythonNumbers = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|NaN|-?Infinity`)

// quotePythonNumbers makes strings of numbers that JSON does not have. It returns a reply without such numbers as it is.
func quotePythonNumbers(reply []byte) []byte {
	if !bytes.Contains(reply, []byte("NaN")) && !bytes.Contains(reply, []byte("Infinity")) {
		return reply // the expression takes ten times as long as the decoder
	}
	return pythonNumbers.ReplaceAllFunc(reply, func(match []byte) []byte {
		if match[0] == '"' {
			return match
		}
		return fmt.Appendf(nil, "%q", match)
	})
}

// read converts a service's reply into the text for the model.
func (r *Retriever) read(body []byte) (string, error) {
	var answer any
	decoder := json.NewDecoder(bytes.NewReader(quotePythonNumbers(texts.Normalize(body))))
	decoder.UseNumber()
	err := decoder.Decode(&answer)
	if err == nil {
		if _, end := decoder.Token(); end != io.EOF {
			err = errors.New("text follows after its end")
		}
	}
	if err != nil {
		return "", r.fault("its answer is not JSON: %v: %s", err, quoteBeginning(body))
	}
	text := &boundedText{remaining: maxDocuments}
	if err = r.response.Execute(text, answer); err != nil {
		return "", r.fault("the template of responses does not fit its answer: %v: %s", err, quoteBeginning(body))
	}
	if out := strings.TrimSpace(text.String()); out != "" {
		return out, nil
	}
	return "nothing found", nil
}

// fault returns an error of the service. The error contains the address without its query, which may be secret.
func (r *Retriever) fault(format string, args ...any) error {
	address, _, _ := strings.Cut(r.cfg.URL, "?")
	return tool.Failed(fmt.Errorf("%s: "+format, append([]any{address}, args...)...))
}

// quoteBeginning quotes the first bytes of a text from outside.
func quoteBeginning(b []byte) string {
	const maxQuoted = 200
	return fmt.Sprintf("%q", tool.Truncate(strings.ToValidUTF8(string(b), "\uFFFD"), maxQuoted))
}

// boundedText collects text up to a limit.
type boundedText struct {
	strings.Builder
	remaining int
}

func (t *boundedText) Write(p []byte) (int, error) {
	if t.remaining -= len(p); t.remaining < 0 {
		return 0, fmt.Errorf("more than %d bytes", maxDocuments)
	}
	return t.Builder.Write(p)
}
