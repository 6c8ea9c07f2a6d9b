package archive

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/mgrpo/mgrpo/trainer/durable"
)

// LostGPU keeps in a run's folder at which version an agent's GPU was lost, and says whether it was lost at the same version the last time.
func LostGPU(dir, agent string, version int64) (again bool, err error) {
	type loss struct {
		Version int64 `json:"version"`
	}
	const most = 1 << 10
	folder := filepath.Join(dir, lostGPUsFolder)
	path := filepath.Join(folder, agent+".json")
	before := loss{Version: -1}
	data, err := durable.ReadSmall(path, most)
	if err == nil {
		err = json.Unmarshal(data, &before)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	if data, err = json.Marshal(loss{version}); err == nil {
		err = errors.Join(durable.MkdirAll(durable.OS{}, folder), durable.ReplaceFile(path, data))
	}
	return before.Version == version, err
}
