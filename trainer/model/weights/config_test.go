package weights

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

func TestGenerationConfig(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, configFile), []byte(`{"model_type":"llama","eos_token_id":2}`))
	writeFile(t, filepath.Join(dir, generationFile), []byte(`{"eos_token_id":[7,8],"pad_token_id":9,"temperature":0.6}`))
	cfg, _, err := readConfig(dir)
	if err != nil || !reflect.DeepEqual(cfg.Tokens.EOS, []int32{7, 8}) || !reflect.DeepEqual(cfg.Tokens.Pad, []int32{9}) || !reflect.DeepEqual(cfg.Tokens.BOS, []int32{1}) {
		t.Errorf("%+v %v", cfg, err)
	}
	writeFile(t, filepath.Join(dir, generationFile), []byte(`{"eos_token_id":[7,99999],"pad_token_id":99999}`))
	cfg, notes, err := readConfig(dir)
	if err != nil || !reflect.DeepEqual(cfg.Tokens.EOS, []int32{7}) || len(cfg.Tokens.Pad) != 0 || len(notes) != 2 || !strings.Contains(notes[0], "99999") {
		t.Errorf("%+v %q %v", cfg, notes, err)
	}
	writeFile(t, filepath.Join(dir, configFile), []byte(`{"model_type":"llama","bos_token_id":32000,"eos_token_id":[7,32000]}`))
	writeFile(t, filepath.Join(dir, generationFile), nil)
	cfg, notes, err = readConfig(dir)
	if err != nil || !reflect.DeepEqual(cfg.Tokens.EOS, []int32{7}) || len(cfg.Tokens.BOS) != 0 || len(notes) != 3 || !strings.Contains(notes[0], configFile+": bos_token_id") {
		t.Errorf("%+v %q %v", cfg, notes, err)
	}
	writeFile(t, filepath.Join(dir, generationFile), []byte(`{"eos_token_id":-7}`))
	_, _, err = readConfig(dir)
	golden.WantError(t, err, generationFile, "eos_token_id")
	writeFile(t, filepath.Join(dir, configFile), []byte(`{"model_type":"llama","x":"`+strings.Repeat("x", maxConfigBytes)+`"}`))
	_, _, err = readConfig(dir)
	golden.WantError(t, err, configFile, "larger")
}
