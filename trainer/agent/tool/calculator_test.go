package tool

import (
	"math/big"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/tool/tooltest"
)

func TestCalculator(t *testing.T) {
	for expression, want := range map[string]string{
		"1 + 2 * 3":                  "7",
		"(1 + 2) * 3":                "9",
		"0.1 + 0.2":                  "0.3",
		"10 / 4":                     "2.5",
		"1 / 3":                      "0.333333333333333",
		"2/3":                        "0.666666666666667",
		"-2 ^ 2":                     "-4",
		"2 ^ 3 ^ 2":                  "512",
		"2 ** 10":                    "1024",
		"2 ^ -2":                     "0.25",
		"7 % 3":                      "1",
		"-7 % 3":                     "2",
		"7.5 % 2":                    "1.5",
		"1e3 * 2":                    "2000",
		".5 + 5.":                    "5.5",
		"3 × 4 ÷ 2 − 1":              "5",
		"sqrt(2)":                    "1.414213562373095",
		"sqrt(9/16)":                 "0.75",
		"round(2.5)":                 "3",
		"round(-2.5)":                "-3",
		"round(1234.567, 2)":         "1234.57",
		"round(1234, -2)":            "1200",
		"max(1, 2.5, -3)":            "2.5",
		"max(1,200,0)":               "200",
		"min(4, abs(-3))":            "3",
		"floor(-1.5) + ceil(1.2)":    "0",
		"100 * (1 + 5/100) ^ 10":     "162.889462677744140625",
		"4 ^ 0.5":                    "2",
		"2 ^ 200":                    "1606938044258990275541962092341162602522202993782792835301376",
		"1 ^ 99999999999999999999":   "1",
		"(-1) ^ 9223372036854775807": "-1",
		"0 ^ 0":                      "1",
		"1 / 3 / 10 ^ 20":            "0.00000000000000000000333333333333333",
		"--3":                        "3",
		"+(2)":                       "2",
	} {
		if got := tooltest.CallText(t, Calculator(), "expression", expression); got != want {
			t.Errorf("%s = %s, want %s", expression, got, want)
		}
	}
}

func TestCalculatorErrors(t *testing.T) {
	for expression, want := range map[string]string{
		"":                         "ends too early",
		"1 +":                      "ends too early",
		"1 / 0":                    "division by zero",
		"5 % 0":                    "division by zero",
		"5 % (1 / 0)":              "division by zero",
		"0 ^ -1":                   "division by zero",
		"1,000 + 1":                "thousands separators",
		"max(1,000, 500)":          "thousands separators",
		"200 * 15%":                "write 15/100 for 15%",
		"15% * 200":                "write 15/100 for 15%",
		"(1 + 2":                   "not closed",
		"max(1, 2":                 "not closed",
		"1 2":                      "cannot read",
		"1.2.3":                    "cannot read",
		"x + 1":                    `no function "x"`,
		"sqrt(-1)":                 "not real",
		"(-8) ^ 0.5":               "not a finite",
		"sqrt(1, 2)":               "takes 1 to 1",
		"sqrt 2":                   "parentheses",
		"9 ^ 9 ^ 9":                "bits",
		"9 ^ 99999999999999999999": "bits",
		"1e9999":                   "bits",
		"2 ^ -9223372036854775808": "bits",
		"round(1, 1e9)":            "decimals",
		"1 + $5":                   "cannot read",
		strings.Repeat("(", 2000):  "deeper",
		strings.Repeat("-", 2000):  "deeper",
		strings.Repeat("1^", 900):  "deeper",
		strings.Repeat("1", 5000):  "longer",
	} {
		got := tooltest.CallText(t, Calculator(), "expression", expression)
		if !strings.HasPrefix(got, "error: ") || !strings.Contains(got, want) {
			t.Errorf("%.40q: %s, want an error with %q", expression, got, want)
		}
		if strings.Contains(got, "for 15%") != strings.Contains(want, "for 15%") {
			t.Errorf("%.40q: %s", expression, got)
		}
	}
}

// FuzzCalculator: a result with finitely many decimals is the same number when its text is read again.
func FuzzCalculator(f *testing.F) {
	for _, seed := range []string{"1+2*3", "2^-3%5", "max(1,min(2,3))", "((1", "1e-9", "round(pi,3)", "sqrt(2)^2", "."} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, expression string) {
		v, err := evaluate(expression)
		if err != nil {
			return
		}
		shown := FormatRational(v)
		back, ok := new(big.Rat).SetString(shown)
		if !ok {
			t.Fatalf("%q is printed as %q, which is not a number", expression, shown)
		}
		if digits, exact := v.FloatPrec(); exact && digits <= 2*showDigits && back.Cmp(v) != 0 {
			t.Fatalf("%q = %v is printed as %q", expression, v, shown)
		}
	})
}
