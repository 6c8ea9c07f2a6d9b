package kernels

import (
	"strings"
	"testing"
)

// TestShapes runs every kernel that is listed at a small size of the user's, in both types.
func TestShapes(t *testing.T) {
	sizes := map[string]string{"group_advantage": "7", "token_logprob": "5x101", "policy_loss_from_logits": "64x101", "linear_policy_loss": "64x32x101", "adamw": "1001",
		"rms_norm": "5x64", "add_rms_norm": "5x64", "swiglu": "5x64", "heads": "5x4x2x16", "attention_packed": "3x1x9x4x2x16", "decode_attention": "3x17x4x2x16",
		"gated_delta_rule": "2x9x2x4x16", "gated_delta_step": "3x2x4x16", "linear": "3x64x32", "sample": "3x101"}
	for _, k := range chosen {
		if !strings.Contains(List(""), k.name) || sizes[k.name] == "" {
			t.Fatalf("%s is not listed or not tried", k.name)
		}
		for _, dtype := range []string{"fp32", "bf16"} {
			shape, err := ParseShape(k.name, sizes[k.name], dtype)
			if err != nil {
				if dtype == "fp32" || !strings.Contains(err.Error(), "no variant in bf16") {
					t.Errorf("%s in %s: %v", k.name, dtype, err)
				}
				continue
			}
			r, err := Run(t.Context(), Options{Device: "cpu", Threads: 1, Quick: true, Log: t.Logf}, shape)
			if err != nil {
				t.Errorf("%s in %s: %v", k.name, dtype, err)
				continue
			}
			for _, row := range r.Rows {
				if !strings.HasPrefix(row.Name, k.name) || row.Providers[0].Status != "ok" || len(row.Targets) > 0 {
					t.Errorf("%s in %s: %+v", k.name, dtype, row)
				}
			}
		}
	}
}

func TestShapesRefused(t *testing.T) {
	for _, c := range [][4]string{
		{"softmax", "3x4", "fp32", `--only "softmax" names no kernel`},
		{"sample", "3", "fp32", "rows x vocabulary"},
		{"sample", "3x0", "fp32", `vocabulary is "0"`},
		{"sample", "3x-4", "fp32", "whole number"},
		{"sample", "3x99999999999", "fp32", "whole number"},
		{"sample", "3x4", "fp8", "fp32 or bf16"},
		{"adamw", "9", "bf16", "no variant"},
	} {
		if _, err := ParseShape(c[0], c[1], c[2]); err == nil || !strings.Contains(err.Error(), c[3]) {
			t.Errorf("%v: %v", c, err)
		}
	}
}
