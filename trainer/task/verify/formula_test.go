package verify

import "testing"

// TestNumericFormulas has figures that are operands of a formula whose value is another number, and forms that look like one.
func TestNumericFormulas(t *testing.T) {
	check(t, Settings{Kind: Numeric}, nil, []verdict{
		// operators
		{"3", "The answer is 2+3.", 0}, {"3", "The answer is 2 * 3.", 0}, {"3", "It is 2×3", 0}, {"3", `2 \times 3`, 0}, {"3", "#### 2*3", 0}, {"3", "2**3", 0}, {"2", "It measures 2x4", 0}, {"3", "2 x 3", 0}, {"5", `\boxed{x + 5}`, 0},
		{"5", `\boxed{x/5}`, 0}, {"5", `\boxed{5/x}`, 0}, {"5", "2 + 3 = 5", 1}, {"6", `2 \times 3 = 6`, 1}, {"5", "Items:\n* 3\n* 5", 1}, {"5", "1.\n+ 5", 1}, {"3", "it is **3**", 1}, {"5", "2 apples + 5", 1}, {"-5", `\boxed{-(-5)}`, 0}, {"5", "km/5", 1},
		// functions
		{"9", "sqrt(9)", 0}, {"9", "it is log(9).", 0}, {"9", "f(9)", 0}, {"18", "gcd(12, 18)", 0}, {"8", `\log_2 8`, 0}, {"8", `\boxed{\log_{2} 8}`, 0}, {"2", `\binom{5}{2}`, 0}, {"2", `\boxed{\binom{5}{2}}`, 0}, {"1", `\boxed{\arctan 1}`, 0},
		{"2", `\boxed{\exp(2)}`, 0}, {"12", `\boxed{\gcd(12)}`, 0}, {"3.7", `\boxed{\lfloor 3.7 \rfloor}`, 0}, {"-5", `\boxed{|-5|}`, 0}, {"10", "n = 7 (mod 10)", 0}, {"0.1", "5 ± 0.1", 0}, {"5", `\boxed{\pm 5}`, 0}, {"9", "The answer is (9).", 1}, {"9", "f(2) = 9", 1},
		// factorials and variables
		{"5", `\boxed{5!}`, 0}, {"5", "It is 5!", 1}, {"5", "#### 5!", 1}, {"5", `\boxed{5x}`, 0}, {"5", `\boxed{5i}`, 0}, {"5", `\boxed{5\theta}`, 0}, {"5", `\boxed{5\ \Omega}`, 1}, {"5", `\boxed{5 in}`, 1}, {"5", `\boxed{5 m}`, 1}, {"5", `\boxed{5 \min}`, 1},
		// bounds
		{"5", `\boxed{x > 5}`, 0}, {"5", `\boxed{x \ge 5}`, 0}, {"5", `\boxed{≤ 5}`, 0}, {"5", `\boxed{\ne 5}`, 0}, {"5", "#### x < 5", 0}, {"5", "#### => 5", 1}, {"5", "#### <b>5</b>", 1}, {"5", "#### 5</answer>", 1}, {"5", `\boxed{\approx 5}`, 1}, {"5", "> 5", 1},
		// numerals of another base
		{"101", `\boxed{101_{\text{two}}}`, 0}, {"101", `\boxed{101_{(2)}}`, 0}, {"5", "_5_ apples", 1},
	})
}
