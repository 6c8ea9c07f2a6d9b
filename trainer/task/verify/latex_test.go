package verify

import "testing"

// TestNumericLaTeX has numbers as LaTeX and typography write them.
func TestNumericLaTeX(t *testing.T) {
	check(t, Options{Kind: Numeric}, nil, []verdict{
		// fractions
		{"0.5", `\boxed{\frac12}`, 1}, {"-0.75", `\boxed{-\frac34}`, 1}, {"0.75", `\tfrac34`, 1}, {"0.75", `\dfrac 3 4`, 1}, {"0.75", `\cfrac{3}4`, 1}, {"0.75", `\frac3{4}`, 1}, {"3/40", `\frac{3}{40}`, 1},
		{"1.5", `\boxed{1\frac12}`, 1}, {"1.5", `1 \tfrac{1}{2}`, 1}, {"-1.5", `\boxed{-1\frac12}`, 1}, {"-0.75", `\frac{3}{-4}`, 1}, {"0.75", `\frac{-3}{-4}`, 1}, {"500.5", `\frac{1{,}001}{2}`, 1}, {"0.5", `\nicefrac{1}{2}`, 1},
		{`\frac12`, "0.5", 1}, {"0.5%", `\frac12\%`, 1}, {"1/23", `\boxed{\frac{1}{2}3}`, 0}, {"0.5", `\frac123`, 0}, {"0.5", `\left.\frac12\right.`, 1}, {"12", `\boxed{\frac12}`, 0},
		{"2", `\boxed{\frac{x}{2}}`, 0}, {"2", `it is $\frac{\sqrt{3}}{2}$`, 0}, {"3", `\frac{1}{\frac{2}{3}}`, 0}, {"2", "2½", 0}, {"1/3", `0.\overline{3}`, 1}, {"1/6", `0.1\bar{6}`, 1}, {"3", `0.\overline{3}`, 0},
		// units with exponents
		{"50", `\boxed{50 \text{ cm}^2}`, 1}, {"50", "The area is 50 m^2.", 1}, {"50 cm^2", "50", 1}, {"50", `\boxed{50\text{ cm}^{2}}`, 1}, {"50", `\boxed{50\,\mathrm{cm^2}}`, 1}, {"50", "50 cm²", 1}, {"50", `\boxed{50m^3}`, 1},
		{"9.8", `\boxed{9.8\ \mathrm{m/s^2}}`, 1}, {"9.8", `\boxed{9.8\,\mathrm{m\,s^{-2}}}`, 1}, {"9.8", "9.8 m s⁻²", 1}, {"50", `\boxed{50 \text{ square units}}`, 1}, {"50", `\boxed{50 \text{ units}^2}`, 1}, {"50", `50 in.^2`, 1}, {"50", `$50 \mbox{ cm}^3$`, 1},
		{"50", `\boxed{50\text{cm$^2$}}`, 1}, {"50", `\boxed{50\;\text{inches}^{3}}`, 1}, {"2", "50 cm^2", 0}, {"50", `\boxed{50\operatorname{cm}^2}`, 1}, {"50", `\boxed{50~\mathrm{kg/m^3}}`, 1}, {"50", "50 mol L^-1", 1}, {"50", "50 J K^{-1} mol^{-1}", 1}, {"50", "50L^2", 0},
		{"3", `\boxed{3x^2}`, 0}, {"3", `\boxed{3ab^2}`, 0}, {"2", `\boxed{x^2}`, 0}, {"3", `\boxed{3\pi^2}`, 0}, {"4", `\boxed{\sin^2 4}`, 0},
		{"12", `\boxed{12 \frac{m}{s}}`, 1}, {"9.8", `\boxed{9.8\,\frac{\text{m}}{\text{s}^2}}`, 1}, {"12", `\boxed{12 \tfrac{\text{km}}{\text{h}}}`, 1}, {"12", `\boxed{12 \frac{x}{y}}`, 0}, {"12", `\boxed{12 \frac{a}{s}}`, 0}, {"12", `\boxed{12 \frac{k}{n}}`, 0}, {"12", `\boxed{12 \frac{d}{t}}`, 0}, {"12", `\boxed{12 \frac{N}{m^2}}`, 1}, {"12", `\boxed{12 \hspace{1mm} \text{cm}}`, 1}, {"12", `\boxed{\phantom{0}12}`, 1},
		// powers, of ten only
		{"0.001", `\boxed{10^{-3}}`, 1}, {"1000", "10^3", 1}, {"1000", "it is 10³", 1}, {"-1000", `\boxed{-10^{3}}`, 1}, {"0.0015", `1.5 \times 10^{-3}`, 1}, {"0.0015", "1.5×10⁻³", 1}, {"0.0015", `1.5\cdot10^{-3}`, 1}, {"1500", "1.5 x 10^3 m", 1}, {"1500", "1.5 * 10**3", 1},
		{"3e8", `\boxed{3 \times 10^8 \text{ m/s}}`, 1}, {"15", `9.46 \times 10^{15}`, 0}, {"10", "10^n", 0}, {"5", "5²", 0}, {"25", "5^2", 0}, {"1000", `(1.5) \times 10^{3}`, 0}, {"3", `2^{3}`, 0}, {"210", "2·10^{2}0", 0},
		// thousands
		{"1000", `1{,}000`, 1}, {"1000000", `\boxed{1{,}000{,}000}`, 1}, {"1000", `1\text{,}000`, 1}, {"1000000", `1\ 000\ 000`, 1}, {"1000", "1~000", 1}, {"1000", `1,\!000`, 1}, {"10000", "10 000", 1}, {"12345", `\boxed{12 345}`, 1}, {"1000", "1'000", 1}, {"1000", "1_000", 1},
		{"100000", "1,00,000", 1}, {"0", "10 000", 0}, {"1", "1.000,50", 0}, {"1234", `\num{1234}`, 1}, {"1234567", "1\u202f234\u202f567", 1},
		// degrees, per cent, ordinals
		{"90", `90^\circ`, 1}, {"90", `\boxed{90^{\circ}}`, 1}, {"90", `90 ^ {\circ} \text{C}`, 1}, {"90", `90\degree`, 1}, {"90", "90°", 1}, {"-40", `-40^\circ\text{F}`, 1}, {"50%", `50\,\%`, 1}, {"0.5", `50\text{\%}`, 1}, {"21", `21^{\text{st}}`, 1}, {"21", `21^{st}`, 1},
		// signs
		{"-5", `\boxed{- 5}`, 1}, {"-5", "x = - 5", 1}, {"5", "10 - 5", 1}, {"-5", "10 - 5", 0}, {"-5", `\boxed{-(5)}`, 1}, {"-5", `\boxed{-{5}}`, 1}, {"-5", "The answer is - 5", 1}, {"5", "7-(5)", 1}, {"5", "The answer:\n- 5", 0}, {"-5", "- 5", 0},
		// indices, roots and multiples
		{"7", `x_{12} = 7`, 1}, {"12", `the term x_{12}`, 0}, {"1011", `1011_2`, 0}, {"1011", `1011_{2}`, 0}, {"2", `it is \sqrt{2}`, 0}, {"2", "it is √2", 0}, {"2", `it is 2\sqrt3`, 0}, {"7", `about 7\pi`, 0}, {"3", `\sqrt[3]{8}`, 0},
		{"7", `\textbf{\text{7}}`, 1}, {"7", `\boxed{\mathbf{7}}`, 1}, {"7", `\boxed{x=7\text{ m}}`, 1},
	})
}

// TestNumericAfterLetters has figures directly after words, currencies and commands. Only names in Latin, Greek or Cyrillic letters contain
// digits. The expected values are those of math-verify and of verl's flexible rule for gsm8k, which takes the last number.
func TestNumericAfterLetters(t *testing.T) {
	check(t, Options{Kind: Numeric}, nil, []verdict{
		{"18", "答案是18", 1}, {"答案是18", "The answer is 18.", 1}, {"18", "因此，他一共需要支付18元。", 1}, {"18", "答えは18です。", 1}, {"18", "총18개", 1}, {"18", `\boxed{约18}`, 1}, {"18", "3个篮子，共18个", 1}, {"3", "3个篮子，共18个", 0}, {"0.5", `\boxed{约\frac12}`, 1},
		{"-5", "答案是-5", 1}, {"5", "答案是-5", 0}, {"-5", "答案是负5", 1}, {"5", "答案是负5", 0}, {"1", "3分之1", 0}, {"18", "一共18万", 0}, {"18", "一共18千克", 1},
		{"500", "2 tickets cost USD500", 1}, {"2", "2 tickets cost USD500", 0}, {"500", "RM500", 1}, {"500", "Rs500", 1}, {"500", "Rs.500", 1}, {"0.5", "Rs.500", 0}, {"500", "kr500", 1}, {"500", "EUR500", 1}, {"-500", "-USD500", 1}, {"500", "-USD500", 0}, {"5", "10-USD5", 1},
		{"500", "approx.500", 1}, {"500", "No.500", 1}, {"0.5", "it is .5", 1}, {"0.5", `x=.5`, 1}, {"0.5", `\approx.5`, 1}, {"5", `\approx5`, 1},
		{"1/2", `\approx\frac{1}{2}`, 1}, {"1/2", `\implies\frac{1}{2}`, 1}, {"1/2", `\boxed{\displaystyle\frac{1}{2}}`, 1}, {"1/2", `\boxed{\textstyle\frac12}`, 1}, {"1/2", `\boxed{\large\frac12}`, 1}, {"1/2", `\boxed{\bf\frac12}`, 1},
		// names, functions and products
		{"2", "H2O", 0}, {"2", "θ2", 0}, {"3", "MP3", 0}, {"2", `\boxed{2\times3}`, 0}, {"3", `\boxed{2\times3}`, 0}, {"3", `2\cdot3`, 0}, {"2", `\log2`, 0}, {"1/2", `\boxed{x\frac{1}{2}}`, 0}, {"1/2", `\pi\frac{1}{2}`, 0}, {"1/2", `\boxed{\sqrt\frac{1}{2}}`, 0}, {"2", `\boxed{\sqrt2}`, 0},
	})
}

// TestQuantityPowers distinguishes areas and volumes from lengths.
func TestQuantityPowers(t *testing.T) {
	check(t, Options{Kind: Quantity}, nil, []verdict{
		{"5 cm^2", "5 cm²", 1}, {"5 cm^2", `5 \text{ cm}^2`, 1}, {"5 cm^2", "5 cm", 0}, {"5 cm^2", "5", 1}, {"5 m²", "50000 cm^2", 1}, {"5 m^3", "5,000,000 cm³", 1}, {"5 m^2", "5 m^3", 0}, {"5 square metres", "5 m^2", 1},
		{"5 sq km", "5,000,000 m²", 1}, {"5 cubic feet", "5 ft^3", 1}, {"9.8 m/s^2", "9.8 m/s²", 1}, {"9.8 m/s^2", "9.8 m/s", 0}, {"1/2 km", `\frac12 km`, 1}, {"5 km", `5\,\text{km}`, 1},
	})
}
