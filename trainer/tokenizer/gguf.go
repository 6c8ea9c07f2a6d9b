package tokenizer

import "errors"

// FromGGUF builds the files that Parse reads from a GGUF file's metadata (keys tokenizer.*).
func FromGGUF(meta map[string]any) (files map[string][]byte, err error) {
	return nil, errors.New("not there yet")
}
