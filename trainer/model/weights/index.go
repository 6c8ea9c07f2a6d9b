package weights

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

const maxShards = 4096

// openIndex reads a shard index and calls add for every shard. Only the tensors in the shards count: an entry of weight_map
// that is in no shard is noted, and so is a tensor that weight_map does not list.
func (o *opener) openIndex(file, ext string, add func(shard string) error) error {
	data, err := readJSON(o.path, file, maxHeaderBytes)
	if err != nil {
		return err
	}
	weightMap, err := parseIndex(data, ext)
	if err != nil {
		return err
	}
	shards := slices.Compact(slices.Sorted(maps.Values(weightMap)))
	if len(shards) > maxShards {
		return fmt.Errorf("weight_map names %d files: at most %d", len(shards), maxShards)
	}
	for _, shard := range shards {
		empty, err := o.empty(shard)
		if err == nil && !empty {
			err = add(shard)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", shard, err)
		}
	}
	o.compareIndex(file, weightMap)
	return nil
}

// compareIndex adds notes about tensors that only weight_map or only the shards contain.
func (o *opener) compareIndex(file string, weightMap map[string]string) {
	o.assigned = map[string]string{}
	var absent, unlisted []string
	for _, name := range slices.Sorted(maps.Keys(weightMap)) {
		if !o.has(name) && !isExtraState(name) {
			absent = append(absent, name)
			o.assigned[name] = weightMap[name]
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.tensors)) {
		if weightMap[name] == "" {
			unlisted = append(unlisted, name)
		}
	}
	if len(absent) > 0 {
		o.notes = append(o.notes, fmt.Sprintf("%s lists %s, which is in no shard", file, firstAndCount(absent)))
	}
	if len(unlisted) > 0 {
		o.notes = append(o.notes, fmt.Sprintf("%s does not list %s, which is read anyway", file, firstAndCount(unlisted)))
	}
}

// firstAndCount returns the first name and the number of the others, for messages.
func firstAndCount(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	return fmt.Sprintf("%s and %d more", names[0], len(names)-1)
}

// parseIndex returns weight_map, which maps tensor names to shard files. Each must be a plain file name that ends in ext.
func parseIndex(data []byte, ext string) (map[string]string, error) {
	r, err := strictjson.NewReader(data)
	if err != nil {
		return nil, err
	}
	var weightMap map[string]string
	err = r.Object(func(key string) error {
		if key != "weight_map" {
			_, err := r.Value()
			return err
		}
		weightMap = map[string]string{}
		return r.Object(func(tensor string) error {
			if len(weightMap) == maxTensors {
				return fmt.Errorf("weight_map lists more than %d tensors", maxTensors)
			}
			shard, err := r.String()
			if err == nil {
				err = checkShardName(shard, ext)
			}
			if err != nil {
				return fmt.Errorf("weight_map[%q]: %w", tensor, err)
			}
			weightMap[tensor] = shard
			return nil
		})
	})
	switch {
	case err != nil:
		return nil, err
	case len(weightMap) == 0:
		return nil, fmt.Errorf("weight_map is missing or empty")
	}
	return weightMap, r.End()
}

// checkShardName accepts plain names of files in the checkpoint's folder.
func checkShardName(name, ext string) error {
	switch {
	case len(name) > strictjson.MaxKeyBytes:
		return fmt.Errorf("file name of %d bytes", len(name))
	case filepath.IsAbs(name) || strings.HasPrefix(name, `\`) || len(name) > 1 && name[1] == ':':
		return fmt.Errorf("%s is an absolute path, outside the checkpoint directory", name)
	case strings.ContainsAny(name, `/\`) || name == ".." || strings.ContainsRune(name, 0):
		return fmt.Errorf("%q must be a plain file name: it may not leave the checkpoint directory", name)
	case !strings.HasSuffix(name, ext):
		return fmt.Errorf("%q must end in %s", name, ext)
	}
	return nil
}
