package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// extraNames are the files of a Hugging Face folder that belong to a model without being weights or
// architecture: the tokenizer's, the chat template, and generation settings.
var extraNames = []string{"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
	"vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json", generationFile}

const maxExtraBytes = 64 << 20

// ExtraFiles reads the tokenizer files, chat template and generation settings that dir has, to be handed
// to WriteHF with the weights.
func ExtraFiles(dir string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, name := range extraNames {
		data, err := readSmallFile(filepath.Join(dir, name), maxExtraBytes)
		switch {
		case err == nil:
			files[name] = data
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("checkpoint: %s: %w", dir, err)
		}
	}
	return files, nil
}
