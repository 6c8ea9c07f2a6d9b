package mgrpo

import (
	"errors"
	"math"
	"testing"
)

func TestDefaultsAreValid(t *testing.T) {
	if err := DefaultObjective().Validate(); err != nil {
		t.Error(err)
	}
	if err := DefaultConvention().Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateNamesTheKey(t *testing.T) {
	for key, spoil := range map[string]func(*Objective){
		"ratio":           func(s *Objective) { s.Ratio = "gspo" },
		"eps_low":         func(s *Objective) { s.EpsLow = 1.5 },
		"eps_high":        func(s *Objective) { s.EpsHigh = math.NaN() },
		"dual_clip":       func(s *Objective) { s.DualClip = new(1.0) },
		"cispo_low":       func(s *Objective) { s.CispoLow = new(-0.1) },
		"cispo_high":      func(s *Objective) { s.CispoHigh = math.Inf(1) },
		"log_ratio_clamp": func(s *Objective) { s.LogRatioClamp = new(88.5) },
		"aggregation":     func(s *Objective) { s.Aggregation = "sum" },
		"max_length":      func(s *Objective) { s.Aggregation = ConstantLength },
		"kl":              func(s *Objective) { s.KL = "k4" },
		"kl_coef":         func(s *Objective) { s.KLCoef = 0.1 },
		"entropy_coef":    func(s *Objective) { s.EntropyCoef = math.Inf(-1) },
		"tis_cap":         func(s *Objective) { s.TISCap = new(0.0) },
	} {
		s := DefaultObjective()
		spoil(&s)
		var setting *SettingError
		if err := s.Validate(); !errors.As(err, &setting) || setting.Key != key {
			t.Errorf("%s: got %v", key, err)
		}
	}
}
