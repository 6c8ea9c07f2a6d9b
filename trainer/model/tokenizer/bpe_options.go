package tokenizer

import (
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

type bpeSettings struct {
	unk                                 string
	fuseUnk, byteFallback, ignoreMerges bool
}

func bpeOptions(options *ordered.Object) (s bpeSettings, err error) {
	flags := map[string]*bool{"fuse_unk": &s.fuseUnk, "byte_fallback": &s.byteFallback, "ignore_merges": &s.ignoreMerges}
	for key, v := range options.All() {
		ok := true
		switch key {
		case "type":
		case "dropout":
			if v != nil && v != 0.0 {
				return s, fmt.Errorf("dropout %v is not supported: equal texts must give equal ids", v)
			}
		case "continuing_subword_prefix", "end_of_word_suffix":
			if v != nil && v != "" {
				return s, fmt.Errorf("%s %q is not supported", key, v)
			}
		case "unk_token":
			if v != nil {
				s.unk, ok = v.(string)
			}
		default:
			flag := flags[key]
			if flag == nil {
				return s, fmt.Errorf("unknown key %q", key)
			}
			*flag, ok = v.(bool)
		}
		if !ok {
			return s, fmt.Errorf("%s has a value of type %s", key, ordered.TypeName(v))
		}
	}
	return s, nil
}
