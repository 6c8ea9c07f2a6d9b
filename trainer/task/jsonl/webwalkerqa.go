package jsonl

// webWalkerQA reads WebWalkerQA's rows. kind and level are info.hop and info.difficulty_level.
func webWalkerQA(row object) (object, error) {
	out, err := renamed(map[string][]string{"id": {"id"}})(row)
	if err != nil {
		return nil, err
	}
	var extra struct {
		Info struct {
			Hop   string `json:"hop"`
			Level string `json:"difficulty_level"`
		} `json:"info"`
	}
	if err := reread(row, &extra); err != nil {
		return nil, err
	}
	out["kind"], out["level"] = quoted(extra.Info.Hop), quoted(extra.Info.Level)
	return out, nil
}
