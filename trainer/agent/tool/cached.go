package tool

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/agent/recorded"
)

// maxKept is the largest number of bytes of a stored answer. The cache may write one byte as six and limits the size of
// its entries.
const maxKept = 8 << 20

// Cached wraps a tool whose answers depend only on its arguments. It returns stored answers from the cache. service
// identifies the tool, including all settings that affect its answers. check, if set, refuses calls without asking;
// refusals are not stored. Errors are stored, too, because the model reads them, except errors of a cancelled
// conversation.
func Cached(t Tool, c *recorded.Cache, service string, check func(args json.RawMessage) error) Tool {
	return withCall(t, func(ctx context.Context, args json.RawMessage) (string, error) {
		if check != nil {
			if err := check(args); err != nil {
				return "", err
			}
		}
		question, err := canonical(args)
		if err != nil {
			return "", err
		}
		answer, err := c.Answer(ctx, recorded.Question{Service: service, Text: question}, func(ctx context.Context) (recorded.Answer, error) {
			out, err := t.Call(ctx, args)
			switch {
			case err == nil:
				return recorded.Answer{Text: Truncate(out, maxKept)}, nil
			case ctx.Err() != nil:
				return recorded.Answer{}, err
			}
			kind, _ := kindOf(err)
			return recorded.Answer{Error: Truncate(err.Error(), maxKept), Kind: kind}, nil
		})
		if err == nil && answer.Error != "" {
			err = &callError{answer.Error, kinds[answer.Kind]}
		}
		return answer.Text, err
	})
}

// canonical writes arguments in a canonical form: keys sorted, without white space. Equal arguments give equal texts.
func canonical(args json.RawMessage) (string, error) {
	var value any
	decoder := json.NewDecoder(bytes.NewReader(args))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		return "", fmt.Errorf("the arguments are not JSON: %w", err)
	}
	text, err := json.Marshal(value)
	return string(text), err
}

// Fingerprint returns a digest of settings, for the name of a service.
func Fingerprint(settings ...string) string {
	b, _ := json.Marshal(settings) // strings always marshal
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}
