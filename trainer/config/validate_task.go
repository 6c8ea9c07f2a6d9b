package config

import "regexp"

func (e *Eval) validate(d *decoder) {
	if e.Temperature > 0 && e.Temperature < 1e-6 {
		d.failAt("eval.temperature", "must be 0, which is greedy, or at least 1e-6")
	}
}

func (c *Config) validateTask(d *decoder) {
	t := &c.Task
	if t.Kind == "jsonl" || t.Kind == "gsm8k" {
		if t.Train == "" {
			d.failAt("task.train", "missing; the task %s reads its training queries from this file", t.Kind)
		}
		if t.Eval == "" {
			d.failAt("task.eval", "missing; the task %s reads its held-out queries from this file", t.Kind)
		}
	} else {
		for key, file := range map[string]Path{"task.train": t.Train, "task.eval": t.Eval} {
			if file != "" {
				d.failAt(key, "the task %s reads no file; set task.kind: jsonl to use this one", t.Kind)
			}
		}
		for key, v := range map[string]*Verifier{"task.verifier": &t.Verifier, "task.expert": &t.Expert} {
			if v.given() {
				d.failAt(key, "the task %s scores answers by itself; remove this key", t.Kind)
			}
		}
	}
	if t.Verifier.Kind == "parts" {
		d.failAt("task.verifier.kind", "parts scores only sub-agents' answers; set task.expert.kind: parts, and here a kind that compares answers")
	}
	if t.Expert.Kind == "parts" && t.Kind == "gsm8k" {
		d.failAt("task.expert.kind", "the rows of gsm8k have no parts; use task.kind: jsonl")
	}
	if len(t.EvalSets) > 0 && t.Kind != "jsonl" {
		d.failAt("task.eval_sets", "only the task jsonl has this key; this one is %s", t.Kind)
	}
	if len(t.Curriculum) > 0 && t.Kind != "jsonl" {
		d.failAt("task.curriculum", "only the task jsonl has this key; this one is %s", t.Kind)
	}
	for _, s := range t.Curriculum {
		if s.MaxParts > 0 && s.MaxParts < s.MinParts {
			d.failAt("task.curriculum."+s.Name+".max_parts", "must be at least min_parts, %d", s.MinParts)
		}
	}
	if t.Layout != "rows" && t.Kind != "jsonl" {
		d.failAt("task.layout", "only the task jsonl has this key; this one is %s", t.Kind)
	}
	if t.Layout != "rows" && t.Fields != defaultFields {
		d.failAt("task.fields", "given in addition to task.layout, which determines the names; keep one")
	}
	t.Verifier.validate(d, "task.verifier", &t.Judge)
	t.Expert.validate(d, "task.expert", &t.Judge)
	if t.Judge.KeyEnv != "" && !validEnv(t.Judge.KeyEnv) {
		d.failAt("task.judge.key_env", "must be the name of an environment variable, not the key itself")
	}
}

// defaultFields are the fields of a configuration that names no fields.
var defaultFields = Fields{ID: "id", Question: "question", Answer: "answer", Choices: "choices", Kind: "kind", Level: "level", Parts: "parts"}

// given reports whether the configuration contains settings for this verifier.
func (v *Verifier) given() bool {
	return v.Kind != "auto" || v.Overlap != 1 || v.Pattern != "" || v.Tolerance != 0 || v.Relative != 0 || len(v.Command) > 0 || v.Path != "" ||
		v.Tokenizer != ""
}

func (v *Verifier) validate(d *decoder, key string, j *Judge) {
	switch v.Kind {
	case "regex":
		if v.Pattern == "" {
			d.failAt(key+".pattern", "missing; a regex verifier needs it")
		}
	case "judge":
		if !webAddress(j.URL) || j.Model == "" {
			d.failAt("task.judge", "%s uses a judge: url must start with http:// or https://, and model must be given", key)
		}
		if hasUser(j.URL) {
			d.failAt("task.judge.url", "it contains a user; put the key into the environment variable that key_env names")
		}
	}
	for _, k := range []struct {
		key, kind string
		given     bool
	}{
		{"command", "program", len(v.Command) > 0},
		{"path", "torchscript", v.Path != ""},
		{"tokenizer", "torchscript", v.Tokenizer != ""},
	} {
		switch {
		case k.given && v.Kind != k.kind:
			d.failAt(key+"."+k.key, "only a verifier of kind %s has this key; this one is %s", k.kind, v.Kind)
		case !k.given && v.Kind == k.kind:
			d.failAt(key+"."+k.key, "missing; a verifier of kind %s needs it", k.kind)
		}
	}
	if v.Overlap != 1 && v.Kind != "parts" {
		d.failAt(key+".overlap", "only a verifier of kind parts has this key; this one is %s", v.Kind)
	}
	if v.Pattern == "" {
		return
	}
	if v.Kind != "regex" {
		d.failAt(key+".pattern", "only a verifier of kind regex has this key; this one is %s", v.Kind)
	} else if _, err := regexp.Compile(v.Pattern); err != nil {
		d.failAt(key+".pattern", "%v", err)
	}
}
