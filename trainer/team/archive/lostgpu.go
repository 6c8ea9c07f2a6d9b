package archive

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
)

// RecordLostGPU records in a run's folder the version at which an agent's GPU was lost. It reports whether the
// previous loss was at this version, too, with no checkpoint in between.
func RecordLostGPU(dir, agent string, version int64) (again bool, err error) {
	type loss struct {
		Version int64 `json:"version"`
	}
	const maxSize = 1 << 10
	path := lostGPUFile(dir, agent)
	before := loss{Version: -1}
	data, err := durable.ReadSmall(path, maxSize)
	if err == nil {
		err = json.Unmarshal(data, &before)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	if data, err = json.Marshal(loss{version}); err == nil {
		err = errors.Join(durable.MkdirAll(durable.OS{}, filepath.Dir(path)), durable.ReplaceFile(path, data))
	}
	return before.Version == version, err
}

func lostGPUFile(dir, agent string) string { return filepath.Join(dir, lostGPUsFolder, agent+".json") }

// forgetLostGPU removes the record when a checkpoint is complete: the agent's GPU has worked since it was lost.
func forgetLostGPU(dir, agent string) error {
	err := os.Remove(lostGPUFile(dir, agent))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
