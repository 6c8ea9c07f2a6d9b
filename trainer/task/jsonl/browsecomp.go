package jsonl

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
)

// browseComp reads BrowseComp's rows. Problem and answer are encrypted with the row's canary, so that they cannot be
// found by a search. Rows without a canary are used as they are.
func browseComp(row object) (object, error) {
	out, err := renamed(map[string][]string{"id": {"id"}, "question": {"problem"}, "answer": {"answer"}, "kind": {"problem_topic"}})(row)
	if err != nil {
		return nil, err
	}
	raw, encrypted := row["canary"]
	if !encrypted {
		return out, nil
	}
	var canary string
	if err := scalar(raw, &canary); err != nil {
		return nil, wrapped("canary", err)
	}
	for _, key := range []string{"question", "answer"} {
		var text string
		if err := scalar(out[key], &text); err != nil {
			return nil, err
		}
		plain, err := decrypt(text, canary)
		if err != nil {
			return nil, fmt.Errorf("the %s cannot be decrypted with the row's canary: %w", key, err)
		}
		out[key] = quoted(plain)
	}
	return out, nil
}

// decrypt reverses BrowseComp's encryption: base64, then exclusive or with the repeated SHA-256 of the password.
func decrypt(text, password string) (string, error) {
	bytes, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", err
	}
	key := sha256.Sum256([]byte(password))
	for i := range bytes {
		bytes[i] ^= key[i%len(key)]
	}
	return strings.ToValidUTF8(string(bytes), "\uFFFD"), nil
}
