package config

import "regexp"

func (e *Eval) validate(d *decoder) {
	d.refuseIf(e.Temperature > 0 && e.Temperature < 1e-6, "eval.temperature", "must be 0, which is greedy, or at least 1e-6")
}

func (t *Task) validate(d *decoder) {
	if t.Kind == "jsonl" || t.Kind == "gsm8k" {
		d.refuseIf(t.Train == "", "task.train", "missing; the task %s reads its training queries from this file", t.Kind)
		d.refuseIf(t.Eval == "", "task.eval", "missing; the task %s reads its held-out queries from this file", t.Kind)
	}
	d.refuseIf(t.Verifier.Kind == "parts", "task.verifier.kind",
		"parts scores only sub-agents' answers; set task.expert.kind: parts, and here a kind that compares answers")
	d.refuseIf(t.Expert.Kind == "parts" && t.Kind == "gsm8k", "task.expert.kind", "the rows of gsm8k have no parts; use task.kind: jsonl")
	for _, s := range t.Curriculum {
		d.refuseIf(s.MaxParts > 0 && s.MaxParts < s.MinParts, "task.curriculum."+s.Name+".max_parts", "must be at least min_parts, %d", s.MinParts)
	}
	t.Verifier.validate(d, "task.verifier", &t.Judge)
	t.Expert.validate(d, "task.expert", &t.Judge)
	d.secretEnv("task.judge.key_env", t.Judge.KeyEnv, "key")
}

func (v *Verifier) validate(d *decoder, key string, j *Judge) {
	if v.Kind == "judge" {
		d.refuseIf(!webAddress(j.URL) || j.Model == "", "task.judge",
			"%s uses a judge: url must start with http:// or https://, and model must be given", key)
		d.refuseIf(hasUser(j.URL), "task.judge.url", "it contains a user; put the key into the environment variable that key_env names")
	}
	for _, k := range []struct {
		key, kind string
		given     bool
	}{
		{"pattern", "regex", v.Pattern != ""},
		{"command", "program", len(v.Command) > 0},
		{"path", "torchscript", v.Path != ""},
		{"tokenizer", "torchscript", v.Tokenizer != ""},
	} {
		d.refuseIf(!k.given && v.Kind == k.kind, key+"."+k.key, "missing; a verifier of kind %s needs it", k.kind)
	}
	if _, err := regexp.Compile(v.Pattern); v.Kind == "regex" && err != nil {
		d.failAt(key+".pattern", "%v", err)
	}
}
