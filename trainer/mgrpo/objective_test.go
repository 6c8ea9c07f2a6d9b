package mgrpo

import (
	"errors"
	"math"
	"testing"
)

func TestDefaultsAreValid(t *testing.T) {
	if err := DefaultSettings().Validate(); err != nil {
		t.Error(err)
	}
	s := DefaultSettings()
	s.AgentD = map[string]int{"coder": 2}
	if s.AlignFor("coder").D != 2 || s.AlignFor("searcher").D != 8 {
		t.Error("align.d of an agent does not override the common one")
	}
}

func TestValidateNamesTheKey(t *testing.T) {
	for key, spoil := range map[string]func(*Settings){
		"align.mode":      func(s *Settings) { s.Align.Mode = "" },
		"align.d":         func(s *Settings) { s.Align.D = 0 },
		"agent_d.coder":   func(s *Settings) { s.AgentD = map[string]int{"coder": 0} },
		"old":             func(s *Settings) { s.Old = "older" },
		"convention.std":  func(s *Settings) { s.Convention.Std = "" },
		"ratio":           func(s *Settings) { s.Ratio = "gspo" },
		"eps_low":         func(s *Settings) { s.EpsLow = 1.5 },
		"eps_high":        func(s *Settings) { s.EpsHigh = math.NaN() },
		"dual_clip":       func(s *Settings) { s.DualClip = new(1.0) },
		"cispo_low":       func(s *Settings) { s.CispoLow = new(-0.1) },
		"cispo_high":      func(s *Settings) { s.CispoHigh = math.Inf(1) },
		"log_ratio_clamp": func(s *Settings) { s.LogRatioClamp = new(88.5) },
		"aggregation":     func(s *Settings) { s.Aggregation = "sum" },
		"max_length":      func(s *Settings) { s.Aggregation = ConstantLength },
		"kl":              func(s *Settings) { s.KL = "k4" },
		"kl_coef":         func(s *Settings) { s.KLCoef = 0.1 },
		"entropy_coef":    func(s *Settings) { s.EntropyCoef = math.Inf(-1) },
		"tis_cap":         func(s *Settings) { s.TISCap = new(0.0) },
	} {
		s := DefaultSettings()
		spoil(&s)
		var setting *SettingError
		if err := s.Validate(); !errors.As(err, &setting) || setting.Key != key {
			t.Errorf("%s: got %v", key, err)
		}
	}
}
