package verify

import (
	"context"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/task"
)

type verdict struct {
	reference, answer string
	want              float64
}

// caseOf returns an answer to a question with these accepted answers.
func caseOf(answer string, choices []string, accepted ...string) Case {
	return Case{Query: task.Query{Answer: accepted[0], Accepted: accepted}, Attempt: task.Attempt{Answer: answer}, Choices: choices}
}

func check(t *testing.T, s Options, choices []string, cases []verdict) {
	t.Helper()
	v, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		got, err := v.Score(context.Background(), caseOf(c.answer, choices, c.reference))
		if err != nil || got != c.want {
			t.Errorf("%s: %q against %q scores %v, %v; want %v", s.Kind, c.answer, c.reference, got, err, c.want)
		}
	}
}

func TestExact(t *testing.T) {
	check(t, Options{Kind: Exact}, nil, []verdict{
		{"Paris", " Paris\n", 1}, {"Paris", "paris", 0}, {"Paris", "Paris.", 0}, {"Paris", "", 0}, {"", "", 1}, {"", "x", 0},
	})
}

func TestNormalized(t *testing.T) {
	check(t, Options{Kind: Normalized}, nil, []verdict{
		{"The Eiffel Tower", "eiffel  tower.", 1}, {"Paris", "Paris, France", 0}, {"don't", "dont", 1},
		{"STRASSE", "straße", 1}, {"ﬁne", "fine", 1}, {"3.5", "35", 0}, {"3.5", "3.5.", 1}, {"-5", "5", 0}, {"-5", "−5", 1},
		{"1,000", "1000", 1}, {"5%", "5", 0},
		{"1,2,3", "1, 2, 3", 1}, {"1,2,3", "12, 3", 0}, {"-$5", "$5", 0}, {"-$5", "-$5.", 1}, {"(-5)", "5", 0}, {"(-5)", "-5", 1}, {".5", "5", 0}, {".5", "it: .5", 0}, {"-.5", ".5", 0}, {"2-3", "2 3", 1}, {"...5", "5", 1}, {"v.5", "v 5", 1},
		{"Paris", "`Paris`", 1}, {"x^2", "x 2", 0}, {"10²", "102", 0}, {"10²", "10²", 1}, {"5 m²", "5 m2", 1}, {"H₂O", "H2O", 1}, {"C#", "C", 0}, {"C++", "C", 0}, {"well-known", "well known", 1},
		// articles
		{"plan A", "plan", 0}, {"Vitamin A", "vitamin a.", 1}, {"A", "a.", 1}, {"A", "B", 0}, {"The Who", "who", 1}, {"an apple", "Apple", 1},
		// initials and typographic hyphens
		{"U.S.", "US", 1}, {"USA", "U.S.A.", 1}, {"JK Rowling", "J.K. Rowling", 1}, {"J. K. Rowling", "J.K. Rowling", 1}, {"J.K Rowling", "JK Rowling", 1}, {"e.g.", "eg", 1}, {"U.S.", "U.K.", 0},
		{"J. Smith", "J Smith", 1}, {"J. Smith", "JSmith", 0}, {"plan B.", "plan b", 1}, {"Ph.D.", "Ph. D.", 1}, {"5", "\u20135", 0}, {"-5", "\u20115", 1}, {"well-known", "well\u2011known", 1},
		{"the", "", 0}, {"the", "the", 1}, {"?", "!", 0}, {"", "the", 0}, {"yes", "yes and no", 0}, {"a b", "ab", 0},
	})
}

func TestNumeric(t *testing.T) {
	check(t, Options{Kind: Numeric}, nil, []verdict{
		// as stated
		{"72", "72", 1}, {"72", "The answer is 72.", 1}, {"72", "#### 72", 1}, {"72", `so \boxed{72}`, 1}, {"72", "72.0", 1},
		{"72", "**72**", 1}, {"72", "(72)", 1}, {"72", "x=72", 1}, {"72", "73", 0}, {"72", "", 0}, {"72", "seventy-two", 0},
		{"72", "72 apples", 1}, {"72", "72kg", 1}, {"72", "72-hour", 1}, {"2", "H2O", 0}, {"1", "x1", 0},
		// the last number, or the marked one
		{"7", "10 - 3 = 7", 1}, {"7", "10-3=7", 1}, {"7", `\boxed{7} because 3+4, see step 12`, 1}, {"12", `\boxed{7} because 12`, 0},
		{"7", "#### 8\n#### 7", 1}, {"7", `\boxed{8} no: #### 7`, 1}, {"7", `#### 8, or rather \boxed{7}`, 1}, {"7", "#### 7 dollars\nChecked in 2 ways.", 1},
		// a heading is no mark
		{"42", "#### Step 2: add\n\nThe total is **42**.", 1}, {"2", "#### Step 2: add\n\nThe total is **42**.", 0}, {"42", "\\boxed{42}\n\n#### Check\n6*7=42, in 2 ways", 1}, {"42", "#### 2. Add\nThe total is 42", 1},
		{"42", "#### The answer is 42", 1}, {"42", "#### Check\nyes\n#### 42", 1}, {"7", "###### Sum\n7", 1},
		// hedging inside a mark
		{"7", "#### 7 or 8", 0}, {"8", "#### 7 or 8", 0}, {"7", `\boxed{6, 7, 8}`, 0}, {"7", `\boxed{}`, 0}, {"7", `\boxed{7`, 0}, {"7", "7 ####", 0},
		{"2", `\boxed{\sqrt{2}}`, 0}, {"3", `\boxed{3\pi}`, 0}, {"10", `\boxed{2^{10}}`, 0}, {"10", "it is 2^10", 0}, {"7", `\boxed{x = 7}`, 1}, {"7", `\boxed{7\text{ apples}}`, 1},
		{"90", `\boxed{90^\circ}`, 1}, {"7", `\boxed{\boxed{7}}`, 1}, {"7", `\boxed{\text{seven}}`, 0},
		// separators and decimals
		{"1234567.89", "1,234,567.89", 1}, {"1000", `\boxed{1{,}000}`, 1}, {"1000", `1\,000`, 1}, {"109,200,000", "109200000", 1},
		{"23", "1,23", 0}, {"1", "1,23", 0}, {"3", "x = 1,2,3", 0}, {".5", "0.5", 1}, {"0.5", "it is .5", 1}, {"5", "3.4.5", 0}, {"5", "3-5", 0}, {"30", "12:30", 0},
		{"72", "72, 72, and again 72,", 1}, {"1", "0.9999999999", 0}, {"1500", "1.5e3", 1}, {"1500", `1.5 \times 10^{3}`, 1}, {"0.0015", "1.5e-3", 1},
		// signs and currency
		{"-5", "-5", 1}, {"-5", "−5", 1}, {"5", "-5", 0}, {"-5", "5", 0}, {"-5", "x=-5", 1}, {"-5", "-$5", 1}, {"-5", "$-5", 1}, {"5", "+5", 1}, {"5", "--5", 1}, {"12", "$12", 1}, {"12", `\$12.00`, 1}, {"12", "€12", 1}, {"19", "covid-19", 1},
		{"-3", "The answer is negative 3.", 1}, {"3", "The answer is negative 3.", 0}, {"-3", "minus 3", 1}, {"-3", "It is minus $3.", 1}, {"3", "10 minus 3", 1}, {"-3", "10 minus 3", 0}, {"3", "non-negative 3", 1},
		{"-3", "\u20113", 1}, {"3", "\u20113", 0}, {"15", "10\u201115", 0}, {"5", "2024\u201101\u201105", 0},
		// spaces that do not break
		{"5", "The answer is\u00a05.", 1}, {"1.5", "1\u00a01/2", 1}, {"5.5", "1\u00a01/2", 0}, {"1234", "1\u00a0234", 1}, {"50", "50\u202f%", 1}, {"12", "1\u00a02", 0},
		// fractions
		{"2.5", "2 and 1/2 hours", 1}, {"0.5", "2 and 1/2", 0}, {"2.5", `2 and \frac{1}{2}`, 1}, {"1.5", "2 and 3/2", 1}, {"2.5", "2 and a 1/2", 1}, {"2.5", "It takes 2 and a half hours.", 1}, {"2", "It takes 2 and a half hours.", 0}, {"10", "She has 10 and half of them are red.", 1}, {"0.5", "1,200 and a half", 0}, {"-2.5", "-2 and a half", 1}, {"2.75", "2 and three quarters", 1}, {"2", "2 and a third one", 1}, {"2", "2 and halves", 1},
		{"0.5", "1/2", 1}, {"1/2", "0.5", 1}, {"1/2", `\boxed{\frac{1}{2}}`, 1}, {"1/2", `\dfrac{2}{4}`, 1}, {"-1/2", `-\frac{1}{2}`, 1}, {"-3/4", `\frac{-3}{4}`, 1},
		{"1.5", "1 1/2", 1}, {"1.5", `1\frac{1}{2}`, 1}, {"7", "14 / 2", 1}, {"1/3", "0.3333", 0}, {"1", "1/0", 0}, {"0", "1/0", 0}, {"6", "2024/05/06", 0}, {"1/2", "½", 1}, {"2.5", "2½", 1}, {"2.5", "It is 2 ½ cups.", 1}, {"1/2", "1½", 0}, {"35", "３５", 1}, {"0.35", "３５％", 1}, {"1e15", "10<sup>15</sup>", 1}, {"2", "H<sub>2</sub>O", 0},
		// per cent
		{"50%", "50%", 1}, {"50%", "50", 1}, {"50", "50%", 1}, {"0.5", "50%", 1}, {"50%", "0.5", 1}, {"50", "0.5", 0}, {"0.5", "50", 0}, {"50", `50\%`, 1}, {"50", "50 percent", 1}, {"0.5", "50 pct", 1}, {"50%", "5000%", 0},
		// floods
		{"1", strings.Repeat("9", 2000), 0}, {"7", strings.Repeat("1 ", 1<<20) + "7", 1}, {"7", strings.Repeat(`\boxed{`, 1<<16) + "7", 0}, {"5", "1e999", 0}, {"1", "1e9999", 0}, {"1", "it is 1e-99999", 0},
		{"7", "\xff\xfe7", 1}, {"7", "٧", 0},
	})
	check(t, Options{Kind: Numeric, Tolerance: 0.01}, nil, []verdict{{"1/3", "0.333", 1}, {"1/3", "0.35", 0}, {"5", "5.01", 1}, {"5", "5.011", 0}})
	// a tenth of the reference, not of the answer
	check(t, Options{Kind: Numeric, Relative: 0.1}, nil, []verdict{{"100", "110", 1}, {"100", "110.5", 0}, {"100", "90", 1}, {"100", "89.5", 0}, {"-100", "-110", 1}, {"0", "0.01", 0}})
	v, _ := New(Options{Kind: Numeric})
	if _, err := v.Score(context.Background(), caseOf("1", nil, "none")); err == nil {
		t.Error("a reference without a number is accepted")
	}
}

// TestInitials: any number of initials is one word, with or without points and spaces.
func TestInitials(t *testing.T) {
	for n := 2; n <= 8; n++ {
		letters := strings.Split("USSRABCD"[:n], "")
		joined := strings.Join(letters, "")
		for _, form := range []string{strings.Join(letters, ".") + ".", strings.Join(letters, "."), strings.Join(letters, ". ") + "."} {
			if got, want := normalize(form), normalize(joined); got != want {
				t.Errorf("%s is %q, want %q", form, got, want)
			}
			if got, want := normalize("The "+form+" fell"), normalize(joined+" fell"); got != want && form[len(form)-1] == '.' {
				t.Errorf("%s is %q, want %q", form, got, want)
			}
		}
	}
	for text, want := range map[string]string{"J. K. Rowling": "jk rowling", "Vitamin C. A cure": "vitamin c cure", "plan b. it failed": "plan b it failed",
		"50 %": "50%", "$ 5": "$5", "cost 5 $ each": "cost 5 $ each"} {
		if got := normalize(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func TestChoice(t *testing.T) {
	choices := []string{"Mercury", "Venus", "Earth", "A big Mars"}
	check(t, Options{Kind: Choice}, choices, []verdict{
		{"B", "B", 1}, {"B", "b", 1}, {"B", "(B)", 1}, {"B", "B.", 1}, {"B", "**B**", 1}, {"B", "Venus", 1}, {"Venus", "B", 1}, {"Venus", "venus.", 1},
		{"B", "B) Venus", 1}, {"B", "The answer is B.", 1}, {"B", "The answer is (B) because A is too hot.", 1}, {"B", "Not A. Answer: B", 1}, {"B", `\boxed{B}`, 1}, {"B", "#### B", 1},
		{"B", "A", 0}, {"B", "", 0}, {"B", "(A) or (B)", 0}, {"B", "A B C D", 0}, {"B", "I think a planet", 0}, {"A", "A planet it is", 0}, {"B", "E", 0}, {"B", "The answer is (A). The answer is (C).", 0},
		{"B", "The answer is (A). Wait, the answer is (B).", 1}, {"D", "a big mars", 1},
		{"B", "Answer: B\n\nExplanation: it is hot.", 1}, {"B", "**Answer:** B. Venus", 1}, {"B", "The correct answer is **B. Venus**.", 1}, {"B", "**B) Venus**", 1}, {"B", "#### Analysis\nEarth is wrong.\n\n**Answer: B**", 1},
		{"A", "(A) or (B)", 0}, {"A", "The answer is (A) or (C)", 0}, {"A", "The answer is A, B", 0}, {"A", "The answer is not (A).", 0}, {"A", "not A", 0}, {"A", "(A) and it is hot", 1},
		{"B", "The best answer is B, since it is hot.", 1}, {"B", "answer: B because it is hot", 1}, {"B", "answer: B because A is cold", 0}, {"B", "B Venus", 1}, {"B", "B - Venus", 1},
		{"B", "So B is correct.", 1}, {"B", "<answer>B</answer>", 1}, {"B", "I think (A). <answer> B. Venus </answer>", 1}, {"B", "Answer：B", 1}, {"B", "B, not A", 1},
		{"B", "Therefore, option B is the correct choice.", 1}, {"A", "A, B and C", 0}, {"A", "A, B or C", 0}, {"A", "A or B", 0}, {"B", "B Mars", 0}, {"A", "A - or B?", 0},
		{"A", "A, or B", 0}, {"A", "A; B", 0}, {"A", "A, B; C; D", 0}, {"A", "A - B - C", 0}, {"A", "A, possibly B", 0}, {"A", "A as well as B", 0}, {"A", "A since B is the same", 0},
		{"B", "A not uncommon mistake is Mercury, but it is (B)", 1}, {"B", "A - no wait, (B)", 1}, {"B", "I, for one, would say (B)", 1}, {"C", "Statement I is correct and statement II is wrong, hence (C).", 1},
		{"C", "The first claim is right but the second is not. (C)", 1},
		{"B", "So B is not correct.", 0}, {"B", "B is the answer", 1}, {"B", "(B) is the answer to this question.", 1}, {"B", "Answer B", 1}, {"B", "Final answer (B)", 1},
	})
	check(t, Options{Kind: Choice}, []string{"Only I is correct", "Only II is correct"}, []verdict{{"B", "Only II is correct", 1}, {"A", "Only II is correct", 0}})
	check(t, Options{Kind: Choice}, nil, []verdict{{"E", "e", 1}, {"E", "F", 0}, {"E", `\boxed{\text{E}}`, 1}, {"E", `\boxed{\textbf{(E)}}`, 1}, {"E", `\boxed{\boldsymbol{E}}`, 1}, {"E", "Option E", 1}, {"E", "The correct option is **E**.", 1},
		{"E", "Ｅ", 1}, {"E", "Option E or F", 0}, {"E", "Options E and F", 0}})
	v, _ := New(Options{Kind: Choice})
	if _, err := v.Score(context.Background(), caseOf("A", choices, "Pluto")); err == nil {
		t.Error("a reference outside the choices is accepted")
	}
}

// TestChoiceConclusions reads the words before a conclusion as lighteval and the multilingual patterns of simple-evals do. The article
// "A", a hedge, an exclusion and a text about the answer name no option.
func TestChoiceConclusions(t *testing.T) {
	var cases []verdict
	for _, answer := range []string{"**Answer**: B", "*Answer*: B", "__Answer__: B", "**Final Answer**: B", "**Correct Answer**: B", "**Answer**\n\nB", "**Final Answer**\nB", "## Final Answer\n\n**B**",
		"The answer should be B.", "The answer would be B.", "The answer must be B.", "The answer is therefore B.", "The answer is clearly B.", "The answer is, therefore, B.", "The best option is B", "My choice is B.",
		"Thus, the correct choice is **B**.", "Therefore, B.", "Hence, option B.", "So **B**.", "I choose B.", "I'd go with B.", "Conclusion: B", "Ans: B", `{"answer": "B"}`, `{"reasoning": "A is cold", "answer": "B", "sure": true}`, "From the tool: {\"answer\": \"A\"}.\n\nThe answer is B.", `{"answer": "B"} My answer is based on the table.`,
		"```json\n{\"answer\": \"\\\\boxed{B}\"}\n```", "<final_answer>B</final_answer>", "the <answer> tag: <answer>B</answer>", "Antwort: B", "Respuesta: B", "Réponse : B", "答案：B", "正确答案是B，因为它热",
		"It is \\boxed{v \\ll c}.\n\n**Answer: B**", "#### Answer: B"} {
		cases = append(cases, verdict{"B", "A and C are cold.\n\n" + answer, 1})
	}
	for _, answer := range []string{"The answer should be considered. A good approach is this.", "A good approach is to think.", "Therefore, A planet with rings.", "So A planet.", "Conclusion: A detailed look is needed.", "I choose a planet.",
		"The best option is a planet.", "The answer should not be (A).", "The answer can't be (A).", "The answer cannot be (A).", "So the correct choice is not (A).", "The best option is A or B.", "**Answer**\n\nA planet with rings", `{"answer": "A or B"}`, "\\boxed{A or B}\n\nAnswer: A",
		"The wrong option is A.", "(A) <answer></answer>", "The answer was clear to A.", "The answer must be a planet.", "Answer: (A) or (B)", "I do not choose A.", "The answer is A. Conclusion: the answer is B.", "It was so A-like.", "A is not correct.", "A is correct because B is wrong.", "I would pick A — or B.", "It is unclear if A is correct.", "A and B is correct.", "\\boxed{B}. A is correct.", "My answer élite A"} {
		cases = append(cases, verdict{"A", answer, 0})
	}
	cases = append(cases, verdict{"B", "The answer is B.\n\nConclusion: A planet like Venus is hot.", 1}, verdict{"B", "B) Venus. Conclusion: a hot planet.", 1})
	check(t, Options{Kind: Choice}, []string{"Mercury", "Venus", "Earth", "A big Mars"}, cases)
}

// TestChoiceOptions distinguishes options that differ only in punctuation, and reads options with LaTeX's delimiters.
func TestChoiceOptions(t *testing.T) {
	for _, choices := range [][]string{{"[1, 2]", "(1, 2)", "{1, 2}", "1, 2"}, {"a", "!a"}, {"!a", "a"}, {"n", "n!"}, {"x-y", "x/y", "x*y"}, {"2/1", "2:1"}, {"F", "F++", "F#"}, {"pb", "Pb", "PB"}, {"$5", "5%", "5"}, {"x²", "2x"}} {
		for i, right := range choices {
			letter := string(rune('A' + i))
			for j, other := range choices {
				want := 0.0
				if i == j {
					want = 1
				}
				answers := []verdict{{right, other, want}, {right, "The answer is " + other + ".", want}, {letter, other, want}, {right, "(" + string(rune('A'+j)) + ")", want}, {letter, string(rune('A' + j)), want}}
				check(t, Options{Kind: Choice}, choices, answers)
			}
		}
	}
	check(t, Options{Kind: Choice}, []string{`$\frac{1}{2}$`, `$\frac{3}{4}$`, "$5$", "9", `\(x < 5\)`, "$5 and $10"}, []verdict{
		{"B", `\boxed{\frac{3}{4}}`, 1}, {"B", `\boxed{\dfrac{3}{4}}`, 1}, {"B", `The answer is $\frac{3}{4}$.`, 1}, {`\frac{3}{4}`, "B", 1}, {`\frac{3}{4}`, "A", 0}, {"B", `\boxed{\frac{1}{2}}`, 0}, {"C", `\boxed{5}`, 1}, {"C", "The answer is 5", 1},
		{"D", "The answer is $9$.", 1}, {"D", `$$ 9 $$`, 1}, {"D", `\[9\]`, 1}, {"E", "x<5", 1}, {"E", "x>5", 0}, {"F", "$5 and $10", 1}, {"F", "5 and 10", 0}, {"A", "The answer is $B$.", 0},
	})
	check(t, Options{Kind: Choice}, []string{`5\%`, `6\%`, `\$5`}, []verdict{{"A", "5%", 1}, {"A", "The answer is 6%.", 0}, {"C", "$5", 1}})
	// 5 KM may be either of two options.
	check(t, Options{Kind: Choice}, []string{"5 km", "5 km.", "6"}, []verdict{{"B", "5 km.", 1}, {"A", "5 km.", 0}, {"A", "5 KM", 0}})
	check(t, Options{Kind: Choice}, []string{"5", "5", "6"}, []verdict{{"5", "5", 1}, {"A", "5", 1}, {"6", "5", 0}})
}

func TestRegex(t *testing.T) {
	check(t, Options{Kind: Regex, Pattern: `ANSWER\[(.*?)\]`}, nil, []verdict{
		{"x", "ANSWER[x]", 1}, {"x", "ANSWER[ x ]", 1}, {"x", "ANSWER[y] ANSWER[x]", 1}, {"x", "ANSWER[x] ANSWER[y]", 0}, {"x", "x", 0}, {"", "no match", 0},
	})
	check(t, Options{Kind: Regex, Pattern: `\d+`}, nil, []verdict{{"12", "a 12 b", 1}, {"12", "121", 0}})
}

// Any of several accepted answers is right, for every verifier that compares; those that cannot be read are passed over.
func TestAnyAcceptedAnswerIsRight(t *testing.T) {
	for _, c := range []struct {
		settings Options
		accepted []string
		answer   string
		want     float64
	}{
		{Options{Kind: Exact}, []string{"NYC", "New York"}, "New York", 1},
		{Options{Kind: Exact}, []string{"NYC", "New York"}, "Boston", 0},
		{Options{Kind: Normalized}, []string{"NYC", "New York"}, "new york.", 1},
		{Options{Kind: Numeric}, []string{"seven", "7"}, "it is 7", 1},
		{Options{Kind: Numeric}, []string{"seven", "7"}, "it is 8", 0},
		{Options{Kind: Choice}, []string{"A", "B"}, "(B)", 1},
		{Options{Kind: Regex, Pattern: `<(.*)>`}, []string{"x", "y"}, "<y>", 1},
	} {
		v, err := New(c.settings)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := v.Score(context.Background(), caseOf(c.answer, []string{"p", "q", "r"}, c.accepted...)); err != nil || got != c.want {
			t.Errorf("%s: %q of %q scores %v, %v; want %v", c.settings.Kind, c.answer, c.accepted, got, err, c.want)
		}
	}
	v, _ := New(Options{Kind: Numeric})
	if _, err := v.Score(context.Background(), caseOf("7", nil, "seven", "siete")); err == nil || !strings.Contains(err.Error(), "siete") {
		t.Errorf("no reference is a number: %v", err)
	}
}

func TestNewNamesTheSetting(t *testing.T) {
	for want, s := range map[string]Options{
		"kind":        {Kind: "bleu"},
		"pattern":     {Kind: Regex, Pattern: "("},
		"tolerance":   {Kind: Numeric, Tolerance: -1},
		"judge url":   {Kind: Judge, Judge: JudgeOptions{URL: "file:///etc/passwd", Model: "m"}},
		"judge model": {Kind: Judge, Judge: JudgeOptions{URL: "http://host"}},
		"judge scale": {Kind: Judge, Judge: JudgeOptions{URL: "http://host", Model: "m", Scale: -1}},
		"MGRPO_UNSET": {Kind: Judge, Judge: JudgeOptions{URL: "http://host", Model: "m", KeyEnv: "MGRPO_UNSET"}},
	} {
		if _, err := New(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v does not name %q", s, err, want)
		}
	}
}

// No answer, however malformed, makes a verifier panic or score outside [0,1].
func FuzzVerifiers(f *testing.F) {
	for _, s := range []string{"#### 1/2", `\boxed{\frac{1}{0}}`, "-$1,000.5%", "1 1/2", "(B) or A", "９", "1e-999", "^{3", `\frac{\frac12}`, `0.\overline{3}`, "5 cm^{2}", "1.5×10⁻³", `\ 000~`, "- 5"} {
		f.Add(s)
	}
	var all []Verifier
	for _, s := range []Options{{Kind: Exact}, {Kind: Normalized}, {Kind: Numeric}, {Kind: Quantity}, {Kind: Choice}, {Kind: Regex, Pattern: `(\d+)?`}} {
		v, err := New(s)
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, v)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		for _, v := range all {
			got, err := v.Score(context.Background(), caseOf(answer, []string{"1", "2"}, "1"))
			if err != nil || (got != 0 && got != 1) {
				t.Errorf("%q: %v, %v", answer, got, err)
			}
		}
	})
}
