package verify

import "testing"

// TestNumericFormulas has figures that are operands of a formula whose value is another number, and forms that look like one.
func TestNumericFormulas(t *testing.T) {
	check(t, Options{Kind: Numeric}, nil, []verdict{
		// operators
		{"3", "The answer is 2+3.", 0}, {"3", "The answer is 2 * 3.", 0}, {"3", "It is 2×3", 0}, {"3", `2 \times 3`, 0}, {"3", "#### 2*3", 0}, {"3", "2**3", 0}, {"2", "It measures 2x4", 0}, {"3", "2 x 3", 0}, {"5", `\boxed{x + 5}`, 0},
		{"5", `\boxed{x/5}`, 0}, {"5", `\boxed{5/x}`, 0}, {"5", "2 + 3 = 5", 1}, {"6", `2 \times 3 = 6`, 1}, {"5", "Items:\n* 3\n* 5", 1}, {"5", "1.\n+ 5", 1}, {"3", "it is **3**", 1}, {"5", "2 apples + 5", 1}, {"-5", `\boxed{-(-5)}`, 0}, {"5", "km/5", 1},
		// functions
		{"9", "sqrt(9)", 0}, {"9", "it is log(9).", 0}, {"9", "f(9)", 0}, {"18", "gcd(12, 18)", 0}, {"8", `\log_2 8`, 0}, {"8", `\boxed{\log_{2} 8}`, 0}, {"2", `\binom{5}{2}`, 0}, {"2", `\boxed{\binom{5}{2}}`, 0}, {"1", `\boxed{\arctan 1}`, 0},
		{"2", `\boxed{\exp(2)}`, 0}, {"12", `\boxed{\gcd(12)}`, 0}, {"3.7", `\boxed{\lfloor 3.7 \rfloor}`, 0}, {"-5", `\boxed{|-5|}`, 0}, {"10", "n = 7 (mod 10)", 0}, {"0.1", "5 ± 0.1", 0}, {"5", `\boxed{\pm 5}`, 0}, {"9", "The answer is (9).", 1}, {"9", "f(2) = 9", 1},
		// factorials and variables
		{"5", `\boxed{5!}`, 0}, {"5", "It is 5!", 1}, {"5", "#### 5!", 1}, {"5", `\boxed{5x}`, 0}, {"5", `\boxed{5i}`, 0}, {"5", `\boxed{5\theta}`, 0}, {"5", `\boxed{5\ \Omega}`, 1}, {"5", `\boxed{5 in}`, 1}, {"5", `\boxed{5 m}`, 1}, {"5", `\boxed{5 \min}`, 1},
		{"5", `\boxed{5a}`, 0}, {"5", `\boxed{5k}`, 0}, {"5", `\boxed{5r}`, 0}, {"5", `\boxed{5 + C}`, 0}, {"5", `\boxed{5\sigma}`, 0}, {"5", `\boxed{5\Delta}`, 0}, {"5", `\boxed{5\hat{i}}`, 0}, {"5", `\boxed{\Gamma(5)}`, 0}, {"5", `\boxed{\operatorname{sgn}(5)}`, 0}, {"5", `\boxed{5C2}`, 0}, {"5", "5P2", 0},
		{"5", `\boxed{\sigma = 5}`, 1}, {"5", "On the top floor (room 5)", 1}, {"5", "floor(5)", 0}, {"5", "sgn (5)", 0}, {"5", `\boxed{5\ \mu\text{m}}`, 1}, {"5", `\boxed{5s}`, 1}, {"50", `\boxed{50p}`, 1}, {"5", `\boxed{5/h}`, 1}, {"5", `\boxed{5\text{ a day}}`, 1}, {"5", `\boxed{5 C}`, 1}, {"5", `\boxed{5 bags}`, 1},
		// bounds
		{"5", `\boxed{x > 5}`, 0}, {"5", `\boxed{x \ge 5}`, 0}, {"5", `\boxed{≤ 5}`, 0}, {"5", `\boxed{\ne 5}`, 0}, {"5", "#### x < 5", 0}, {"5", "#### => 5", 1}, {"5", "#### <b>5</b>", 1}, {"5", "#### 5</answer>", 1}, {"5", `\boxed{\approx 5}`, 1}, {"5", "> 5", 1},
		// numerals of another base
		{"101", `\boxed{101_{\text{two}}}`, 0}, {"101", `\boxed{101_{(2)}}`, 0}, {"5", "_5_ apples", 1},
	})
}

// TestNumericEquations has marked equations, whose right side is the answer's number, as in math-verify.
func TestNumericEquations(t *testing.T) {
	check(t, Options{Kind: Numeric}, nil, []verdict{
		{"18", `\boxed{f(2)=18}`, 1}, {"0.5", `\boxed{P(X=2)=0.5}`, 1}, {"60", `\boxed{\theta = 60^{\circ}}`, 1}, {"1024", `\boxed{2^{10} = 1024}`, 1}, {"10", `\boxed{\binom{5}{2}=10}`, 1}, {"120", `\boxed{5! = 120}`, 1}, {"5", `\boxed{2+3=5}`, 1},
		{"3", `\boxed{\log_2 8 = 3}`, 1}, {"2", `\boxed{\gcd(4,6)=2}`, 1}, {"78.5", `\boxed{\pi r^2 = 78.5}`, 1}, {"78.5", `\boxed{\pi r^2 \approx 78.5}`, 1}, {"0.5", `\boxed{P(X < 2) = 0.5}`, 1}, {"18", `\boxed{f(2) = 2 \cdot 9 = 18}`, 1}, {"18", `#### 2*9 = 18`, 1},
		// two values, a bound or a formula
		{"2", `\boxed{x=1, y=2}`, 0}, {"2", `\boxed{x=1 \text{ or } x=2}`, 0}, {"2", `\boxed{x=1 \quad x=2}`, 0}, {"2", `\boxed{x=1 y=2}`, 0}, {"2", `\boxed{x=1; y=2}`, 0}, {"2", `\boxed{5 (n=2)}`, 0}, {"5", `\boxed{x \le y = 5}`, 0}, {"5", `\boxed{x >= 5}`, 0},
		{"0.333", `\boxed{\frac13 \approx 0.333}`, 0}, {"5", `\boxed{x = \pm 5}`, 0}, {"1", `\boxed{y = 2x + 1}`, 0}, {"5", `\boxed{y = x + 5}`, 0}, {"5", `\boxed{y = 5 + x}`, 0}, {"5", `\boxed{y = 5x}`, 0}, {"5", `\boxed{x - 5}`, 0}, {"1/2", `\boxed{a-1 \over 2}`, 0}, {"19", `\boxed{\text{covid-19}}`, 1}, {"3", `\boxed{5 = 2+3}`, 0}, {"2", `\boxed{x = \sqrt{2}}`, 0},
		{"2", `\boxed{x=1\ y=2}`, 0}, {"2", `\boxed{x=1\text{ und }y=2}`, 0}, {"5", `\boxed{5 = x}`, 1}, {"5", `\boxed{y = mx + 5}`, 0}, {"5", `\boxed{f(x) = x^2 + 5}`, 0}, {"3", `\boxed{\{x = 3, 4\}}`, 0},
		// quotients
		{"1/2", `\boxed{1 \over 2}`, 1}, {"1/2", `\boxed{{1\over 2}}`, 1}, {"1/2", `\boxed{{1}/{2}}`, 1}, {"1/2", `\boxed{\frac{(1)}{(2)}}`, 1}, {"1/2", `\boxed{\frac{{1}}{{2}}}`, 1}, {"1/2", `\boxed{1\div2}`, 1}, {"1/2", `\boxed{1 ÷ 2}`, 1},
		{"1", `\boxed{1 \over x}`, 0}, {"2", `\boxed{x \over 2}`, 0}, {"1/2", `\boxed{3+1 \over 2}`, 0}, {"3", `\boxed{10^{3}/{2}}`, 0}, {"2", `\boxed{12 \div 3 \div 2}`, 0}, {"2", `\boxed{10 - 6 \div 3}`, 0},
		// tags
		{"18", "<answer>18</answer> That took 3 steps.", 1}, {"3", "<answer>18</answer> That took 3 steps.", 0}, {"18", `<answer>\boxed{18}</answer> or 3`, 1}, {"18", "<answer>The answer is 18.</answer>\n3", 1}, {"18", `{"answer": 18, "steps": 3}`, 1}, {"18", `{"answer": "$18", "steps": 3}`, 1},
		{"3", "3 <answer></answer>", 0}, {"18", "<answer>18</answer> The <answer> tag has 1 number.", 1}, {"18", "The <answer> tag: <answer>18</answer>", 1}, {"18", "3 <answer>18", 1}, {"18", "<answer>3 <answer>18</answer> 4", 1},
		// a conclusion after a JSON object
		{"6", `The tool returned {"answer": 5}. The final answer is 6.`, 1}, {"5", `The tool returned {"answer": 5}. The final answer is 6.`, 0}, {"6", `Given {x}: {"answer": 5}, but 1 is missing. \boxed{6}`, 1}, {"5", `{"out": {"answer": 5}, "note": "the answer is in metres, 3 of them"}`, 1}, {"5", `{"answer": 5} in 3 steps`, 1}, {"5", `"answer": 5`, 1},
		{"18", `{"answer": 18}. The answer is in dollars.`, 1}, {"18", `{"answer": "18"}. The answer is 3.`, 0},
	})
}
