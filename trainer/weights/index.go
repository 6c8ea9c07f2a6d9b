package weights

import (
	"fmt"
	"path/filepath"
	"sort"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/durable"
	"github.com/mgrpo/mgrpo/trainer/strictjson"
)

const maxShards = 4096

// openIndex reads a shard index and adds every shard with add. Each shard must have exactly the tensors that weight_map
// assigns to it.
func (s *Source) openIndex(file, ext string, add func(shard string) error) error {
	data, err := durable.ReadSmall(filepath.Join(s.path, file), maxHeaderBytes)
	if err != nil {
		return err
	}
	weightMap, err := parseIndex(data, ext)
	if err != nil {
		return err
	}
	shardNames := map[string][]string{}
	for tensor, shard := range weightMap {
		shardNames[shard] = append(shardNames[shard], tensor)
	}
	if len(shardNames) > maxShards {
		return fmt.Errorf("weight_map names %d files: at most %d", len(shardNames), maxShards)
	}
	shards := make([]string, 0, len(shardNames))
	for shard := range shardNames {
		shards = append(shards, shard)
	}
	sort.Strings(shards)
	for _, shard := range shards {
		before := len(s.tensors)
		if err := add(shard); err != nil {
			return fmt.Errorf("%s: %w", shard, err)
		}
		sort.Strings(shardNames[shard])
		for _, name := range shardNames[shard] {
			if _, ok := s.tensors[name]; !ok {
				return fmt.Errorf("tensor %s is missing from %s, to which weight_map assigns it", name, shard)
			}
		}
		if len(s.tensors)-before != len(shardNames[shard]) {
			for name := range s.tensors {
				if weightMap[name] == "" {
					return fmt.Errorf("unexpected tensor %s in %s: weight_map does not list it", name, shard)
				}
			}
			return fmt.Errorf("%s has tensors that weight_map assigns to other files", shard)
		}
	}
	return nil
}

// parseIndex returns weight_map: tensor name to shard file, each a plain file name ending in ext.
func parseIndex(data []byte, ext string) (map[string]string, error) {
	r, err := strictjson.NewReader(data)
	if err != nil {
		return nil, err
	}
	var weightMap map[string]string
	err = r.Object(func(key string) error {
		if key != "weight_map" {
			_, err := r.Value(0)
			return err
		}
		weightMap = map[string]string{}
		return r.Object(func(tensor string) error {
			if len(weightMap) == maxTensors {
				return fmt.Errorf("weight_map lists more than %d tensors", maxTensors)
			}
			shard, err := r.Text()
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
