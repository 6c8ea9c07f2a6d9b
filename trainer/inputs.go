package trainer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// inputsFile is the name of the file with a run's inputs in the run's folder.
const inputsFile = "inputs.json"

// inputs are the files that a run reads. A resumed run compares them with the saved ones.
type inputs struct {
	Dir   string            `json:"dir"`   // the run's folder when this was written; config.yaml's relative paths start from there
	Files map[string]string `json:"files"` // digests, by key
}

// readInputs reads the saved inputs of a run. They are empty in the folder of a run that did not save them.
func readInputs(dir string) (in inputs, err error) {
	const maxSize = 1 << 20
	text, err := durable.ReadSmall(filepath.Join(dir, inputsFile), maxSize)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return inputs{}, nil
	case err == nil:
		err = json.Unmarshal(text, &in)
	}
	if err != nil {
		return inputs{}, fmt.Errorf("reading the digests of the run's files: %s: %w; remove it to resume without a comparison",
			filepath.Join(dir, inputsFile), err)
	}
	return in, nil
}

// saveInputs writes the digests of this process's files. It keeps the saved digests of files that only other processes have.
func saveInputs(dir string, files map[string]string) error {
	in, err := readInputs(dir)
	if err != nil {
		return err
	}
	if in.Files == nil {
		in.Files = map[string]string{}
	}
	maps.Copy(in.Files, files)
	if in.Dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	text, err := json.MarshalIndent(in, "", "  ")
	if err != nil {
		return err
	}
	return durable.ReplaceFile(filepath.Join(dir, inputsFile), append(text, '\n'))
}

// compare returns notes on files whose digests differ from the saved digests. Changed training questions are an error.
func (in inputs) compare(files map[string]string) (notes []metrics.Note, err error) {
	const questions = "task.train"
	var differ []string
	for _, key := range slices.Sorted(maps.Keys(files)) {
		if saved, known := in.Files[key]; known && saved != files[key] {
			differ = append(differ, key)
		}
	}
	switch {
	case slices.Contains(differ, questions):
		return nil, fmt.Errorf("resuming: the contents of %s have changed since the run was last started: its steps know questions by their number in "+
			"the file. Restore the file, or choose another run.dir", questions)
	case len(differ) > 0:
		notes = append(notes, metrics.Warnf("", metrics.TopicStart, "the run continues with other contents of: %s", strings.Join(differ, ", ")))
	}
	return notes, nil
}
