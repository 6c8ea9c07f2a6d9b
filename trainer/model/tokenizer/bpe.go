package tokenizer

import (
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/bpe"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

func newBPE(s *spec, byteLevel bool) (*bpe.Model, error) {
	o, err := bpeOptions(s.options)
	if err != nil {
		return nil, err
	}
	o.ByteLevel = byteLevel
	return bpe.New(s.vocab, s.merges, o)
}

// bpeOptions reads the settings of a model of the type BPE.
func bpeOptions(options *ordered.Object) (o bpe.Options, err error) {
	flags := map[string]*bool{"fuse_unk": &o.FuseUnk, "byte_fallback": &o.ByteFallback, "ignore_merges": &o.IgnoreMerges}
	for key, v := range options.All() {
		ok := true
		switch key {
		case "type":
		case "dropout":
			if v != nil && v != 0.0 {
				return o, fmt.Errorf("dropout %v is not supported: equal texts must give equal ids", v)
			}
		case "continuing_subword_prefix", "end_of_word_suffix":
			if v != nil && v != "" {
				return o, fmt.Errorf("%s %q is not supported", key, v)
			}
		case "unk_token":
			if v != nil {
				o.Unk, ok = v.(string)
			}
		default:
			flag := flags[key]
			if flag == nil {
				return o, fmt.Errorf("unknown key %q", key)
			}
			*flag, ok = v.(bool)
		}
		if !ok {
			return o, fmt.Errorf("%s has a value of type %s", key, ordered.TypeName(v))
		}
	}
	return o, nil
}
