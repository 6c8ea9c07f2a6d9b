package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/retry"
)

// StatusError is a reply with a status other than 200, or a reply with status 200 and an error in its body.
type StatusError struct {
	Code int
	text string // the status with the beginning of the body, without the key
	body string // the body in lower case
}

func (e *StatusError) Error() string { return e.text }

// Unauthorised reports whether the server rejected the key or received none.
func Unauthorised(err error) bool {
	var e *StatusError
	return errors.As(err, &e) && e.Code == http.StatusUnauthorized
}

// refusesTemperature reports whether the server accepts only the default temperature.
func (e *StatusError) refusesTemperature() bool {
	return strings.Contains(e.body, "temperature") &&
		(strings.Contains(e.body, "does not support") || strings.Contains(e.body, "unsupported") || strings.Contains(e.body, "only the default"))
}

// OutOfTokens reports whether an error means that the model has spent the limit on the reply's tokens without an answer, as
// OpenAI's reasoning models report it.
func OutOfTokens(err error) bool {
	var e *StatusError
	return errors.As(err, &e) && e.Code == http.StatusBadRequest && strings.Contains(e.body, "max_tokens or model output limit was reached")
}

// contextWords are in the errors of servers about requests beyond the context.
var contextWords = regexp.MustCompile("context_length_exceeded|" + // OpenAI
	"maximum context length|" + // OpenAI, vLLM
	"longer than.*context length|" + // SGLang
	"exceed_context_size|available context size|" + // llama.cpp
	"prompt is too long|exceed context limit|" + // Anthropic
	"input is too long|" + // Bedrock
	"maximum prompt length|" + // xAI
	"tokens \\+ `max_new_tokens` must be <=|" + // TGI, Together
	"exceeds the maximum number of tokens allowed") // Gemini

// ContextExceeded reports whether an error means that a request, with the limit on its reply, has more tokens than the model's context.
func ContextExceeded(err error) bool {
	var e *StatusError
	return errors.As(err, &e) && (e.Code == http.StatusBadRequest || e.Code == http.StatusUnprocessableEntity) && contextWords.MatchString(e.body)
}

// statusError returns the error of a reply with a status other than 200.
func (c *Client) statusError(resp *http.Response, body string) error {
	return retry.Refusal(resp, &StatusError{Code: resp.StatusCode, text: fmt.Sprintf("%s: %s", resp.Status, c.quote(body)), body: strings.ToLower(body)})
}

// noError reports whether a reply has no error under a key: the value is missing, null, false or empty.
func noError(raw json.RawMessage) bool {
	switch string(raw) {
	case "", "null", "false", `""`, "{}", "[]", "0":
		return true
	}
	return false
}

// bodyError returns the error in the body of a reply with status 200. It is a *retry.Transient if the server is busy or
// failing. If the error gives no reason, bodyError assumes that.
func (c *Client) bodyError(body []byte, raw json.RawMessage) error {
	var fields struct {
		Code    json.RawMessage `json:"code"`
		Status  json.RawMessage `json:"status"`
		Type    string          `json:"type"`
		Message json.RawMessage `json:"message"`
	}
	_ = json.Unmarshal(raw, &fields) // an error may also be a plain text
	code := http.StatusServiceUnavailable
	for _, named := range []json.RawMessage{fields.Code, fields.Status} {
		if n, err := strconv.Atoi(strings.Trim(string(named), `"`)); err == nil && n >= 400 && n < 600 {
			code = n
			break
		}
		if of := statusOf(string(named)); of != 0 {
			code = of
			break
		}
	}
	if code == http.StatusServiceUnavailable {
		if of := statusOf(fields.Type); of != 0 {
			code = of
		}
	}
	err := &StatusError{Code: code, text: fmt.Sprintf("the reply has status 200 but contains an error, treated as status %d: %s", code,
		c.quote(string(body))), body: strings.ToLower(string(body))}
	return retry.Refusal(&http.Response{StatusCode: code}, err)
}

// Words in the names of errors that another attempt would meet again.
var (
	unauthorisedWords = regexp.MustCompile(`(?i)auth|api_key|permission|forbidden`)
	refusedWords      = regexp.MustCompile(`(?i)invalid|bad_?request|context_length|exceed_context|` +
		`not_?found|quota|billing|content_filter|unsupported|validation`)
)

// statusOf returns the status that corresponds to an error's name, or 0 if the error may be temporary.
func statusOf(name string) int {
	switch {
	case unauthorisedWords.MatchString(name):
		return http.StatusUnauthorized
	case refusedWords.MatchString(name):
		return http.StatusBadRequest
	}
	return 0
}
