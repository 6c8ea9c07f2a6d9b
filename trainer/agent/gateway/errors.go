package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// apiError is an error in the form that OpenAI's clients read.
type apiError struct {
	status    int
	code      string
	message   string
	param     string
	retryable bool // the client may ask again in two seconds
}

func (e *apiError) Error() string { return e.message }

func refuse(status int, code, format string, args ...any) *apiError {
	return &apiError{status: status, code: code, message: fmt.Sprintf(format, args...)}
}

// invalid returns the refusal of a request because of one of its fields.
func invalid(param, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, code: "invalid_request", param: param, message: param + ": " + fmt.Sprintf(format, args...)}
}

// tryAgainLater returns an error that asks the client to try again later. OpenAI's clients do so automatically.
func tryAgainLater(format string, args ...any) *apiError {
	e := refuse(http.StatusTooManyRequests, "busy", format, args...)
	e.retryable = true
	return e
}

// toAPIError converts any error into an error for the client.
func toAPIError(err error) *apiError {
	var api *apiError
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &api):
		return api
	case errors.As(err, &large):
		return refuse(http.StatusRequestEntityTooLarge, "too_large", "the request has more than %d bytes", large.Limit)
	}
	return refuse(http.StatusInternalServerError, "server_error", "%v", err)
}

// body returns the error's JSON.
func (e *apiError) body() []byte {
	kind := "invalid_request_error"
	if e.status >= 500 {
		kind = "server_error"
	}
	var param any
	if e.param != "" {
		param = e.param
	}
	// Texts always marshal.
	out, _ := json.Marshal(jsonObject{"error": jsonObject{"message": e.message, "type": kind, "param": param, "code": e.code}})
	return out
}

// write answers a request with the error.
func (e *apiError) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	if e.retryable {
		w.Header().Set("Retry-After", "2")
	}
	if e.status == http.StatusConflict {
		w.Header().Set("X-Should-Retry", "false") // otherwise OpenAI's clients repeat the request after a 409
	}
	w.WriteHeader(e.status)
	w.Write(e.body())
}
