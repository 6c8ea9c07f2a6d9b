package verify

import (
	"math"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// The expected results come from the evaluation scripts of SQuAD 1.1 and HotpotQA on the same texts.
func TestSquadNormalisation(t *testing.T) {
	for text, want := range map[string]string{
		"The Eiffel Tower!":     "eiffel tower",
		"  an   apple,a pear ":  "applea pear",
		"a":                     "",
		"the-a-an":              "theaan",
		"U.S.A.":                "usa",
		"Theatre of a Thousand": "theatre of thousand",
		"1,000.5":               "10005",
		"\"Don't\"":             "dont",
		"the–a":                 "–",
		"Beyoncé\u00a0Knowles":  "beyoncé knowles",
		"A_The":                 "athe",
		"“the”":                 "“ ”",
		"ΟΔΟΣ ΣΑΣ":              "οδος σας",
		"İstanbul":              "i\u0307stanbul",
	} {
		if got := normaliseAnswer(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func TestExactMatchAndF1(t *testing.T) {
	score := func(kind Kind, answer string, accepted ...string) float64 {
		v, err := New(Options{Kind: kind})
		if err != nil {
			t.Fatal(err)
		}
		got, err := v.Score(t.Context(), Case{Query: task.Query{Answer: accepted[0], Accepted: accepted}, Attempt: task.Attempt{Answer: answer}})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for _, c := range []struct {
		answer    string
		accepted  []string
		match, f1 float64
	}{
		{"the Eiffel tower", []string{"Eiffel Tower"}, 1, 1},
		{"Eiffel Tower in Paris", []string{"Eiffel Tower"}, 0, 2.0 / 3},
		{"Paris", []string{"Eiffel Tower"}, 0, 0},
		{"New York York", []string{"New York"}, 0, 0.8},
		{"York", []string{"New York York"}, 0, 0.5},
		{"NYC", []string{"New York", "nyc"}, 1, 1},
		{"the city of New York", []string{"New York City", "Big Apple"}, 0, 6.0 / 7},
		{"yes", []string{"yes"}, 1, 1},
		{"yes it is", []string{"yes"}, 0, 0},
		{"no", []string{"no one"}, 0, 0},
		{"", []string{"the"}, 1, 0}, // no word in common
		{"!!!", []string{"A"}, 1, 0},
		{"the", []string{"Ada"}, 0, 0},
	} {
		if got := score(ExactMatch, c.answer, c.accepted...); got != c.match {
			t.Errorf("exact match of %q with %q is %v", c.answer, c.accepted, got)
		}
		if got := score(F1, c.answer, c.accepted...); math.Abs(got-c.f1) > 1e-12 {
			t.Errorf("F1 of %q with %q is %v, want %v", c.answer, c.accepted, got, c.f1)
		}
	}
}

// TestF1Bits: answers of equal quality have equal scores, and so no advantage over each other.
func TestF1Bits(t *testing.T) {
	long := strings.Repeat(" x", 14)
	one, two := wordF1("york"+strings.Repeat(" x", 6), "new york"), wordF1("new york"+long, "new york")
	if one != two || one != 2.0/9 {
		t.Errorf("1 of 7 words scores %v, 2 of 16 %v", one, two)
	}
}

func TestQuantity(t *testing.T) {
	for _, c := range []struct {
		reference, answer   string
		tolerance, relative float64
		want                float64
	}{
		{"5 km", "5 kilometres", 0, 0, 1}, {"5 km", "5000 m", 0, 0, 1}, {"5 km", "5", 0, 0, 1}, {"5 km", "5 miles", 0, 0, 0}, {"5 km", "5 kg", 0, 0, 0},
		{"5 km", "about 5.1 km", 0, 0, 0}, {"5 km", "5.1 km", 0.1, 0, 1}, {"5 km", "5.1", 0.1, 0, 1}, {"5 km", "5100 m", 0.1, 0, 1}, {"5 km", "5.2 km", 0.1, 0, 0}, {"5", "5.1 km", 0.1, 0, 1}, {"5 km", "104", 100, 0, 1}, {"0 km", "1 m", 0, 0, 0}, {"5 km", "5.1 km", 0, 0.02, 1}, {"5 km", "5.2 km", 0, 0.02, 0}, {"-5 km", "-5.1 km", 0, 0.02, 1},
		{"$1.2 million", "1200000", 0, 0, 1}, {"$1.2 million", "1,200,000 dollars", 0, 0, 1}, {"$1.2 million", "€1.2 million", 0, 0, 0},
		{"65%", "65 percent", 0, 0, 1}, {"65%", "65 per cent", 0, 0, 1}, {"65%", "65", 0, 0, 1}, {"65%", "0.65", 0, 0, 0}, {"65%", "66%", 0, 0, 0},
		{"17 lamps", "17 lamps.", 0, 0, 1}, {"17 lamps", "17 lamp", 0, 0, 1}, {"17 lamps", "17 boats", 0, 0, 0}, {"17", "The answer is 17 lamps", 0, 0, 1},
		{"1,003", "1003", 0, 0, 1}, {"1,003", "1003.0", 0, 0, 1}, {"12", "12 or 13", 0, 0, 0}, {"12", "1 2", 0, 0, 0},
		{"11.7 (0.461)", "11.7 (0.461)", 0, 0, 1}, {"11.7 (0.461)", "11.7", 0, 0, 0}, {"Garra Dembele", "garra  dembele", 0, 0, 1}, {"May 12, 2008", "May 12, 2008", 0, 0, 1}, {"2–3", "2–3", 0, 0, 1},
		{"50%", "50 cent", 0, 0, 0}, {"50 cents", "50 cent", 0, 0, 1}, {"50 km per hour", "50 km %", 0, 0, 0}, {"50 km per hour", "50 km per hour", 0, 0, 1},
		{"6 ft", "2 yards", 0, 0, 1}, {"90 minutes", "1.5 hours", 0, 0, 1},
		{"5 hrs", "5 hours", 0, 0, 1}, {"5 kg", "5 kgs", 0, 0, 1}, {"5 kms", "5000 m", 0, 0, 1}, {"5 ms", "5 m", 0, 0, 0}, {"5 lbs", "5 pounds", 0, 0, 1}, {"5 gas", "5 ga", 0, 0, 0},
		{"USS Macdonough (DD-9)", "9", 0, 0, 0}, {"USS Macdonough (DD-9)", "USS Macdonough DD-9", 0, 0, 1}, {"September 17", "17", 0, 0, 0}, {"Apollo 11", "Apollo 12", 1, 0, 0},
		{"US$ 5 million", "$5,000,000", 0, 0, 1}, {"USD 5", "5", 0, 0, 1}, {"around 5 km", "5 km", 0, 0, 1}, {"-5 °C", "-5", 0, 0, 1},
		{"¥500", "500", 0, 0, 1}, {"¥500", "500 ¥", 0, 0, 1}, {"¥500", "500 yen", 0, 0, 1}, {"₹500", "500 rupees", 0, 0, 1}, {"¥500", "$500", 0, 0, 0}, {"~5 km", "5 km", 0, 0, 1}, {"5 km", "~ 5", 0, 0, 1},
		{"5 km", "**5 km**", 0, 0, 1}, {"5 km", "**5** km.", 0, 0, 1}, {"5 km", "\"5 km\"", 0, 0, 1}, {"5 km", "“5 km.”", 0, 0, 1}, {"5 km", "`5`!", 0, 0, 1}, {"5 km", "5 km is the answer.", 0, 0, 1}, {"5 km", "The answer is **5 km**.", 0, 0, 1},
		{"-$5 million", "$5 million", 0, 0, 0}, {"-$5 million", "-5 million dollars", 0, 0, 1}, {"-$5", "$-5", 0, 0, 1}, {".5 km", "500 m", 0, 0, 1}, {"5", "1e9999", 0, 0, 0},
		{"5", "minus 5", 0, 0, 0}, {"-5 °C", "minus 5 °C", 0, 0, 1}, {"10 Downing Street", "10", 0, 0, 0}, {"10 Downing Street", "10 downing street", 0, 0, 1}, {"5 Square Miles", "5 sq mi", 0, 0, 1},
		{"20th Century Fox", "20", 0, 0, 0}, {"20th Century Fox", "20th century fox", 0, 0, 1}, {"1st Infantry Division", "1", 0, 0, 0}, {"5th", "5", 0, 0, 1}, {"5th", "5th.", 0, 0, 1}, {"5'", "5\"", 0, 0, 0},
		{"7 Year Itch", "7", 0, 0, 0}, {"10 N Main St", "10", 0, 0, 0}, {"7 Year Itch", "7 year itch", 0, 0, 1},
		// symbols and names
		{"5 V", "5 volts", 0, 0, 1}, {"10 N", "10 newtons", 0, 0, 1}, {"300 K", "300 kelvin", 0, 0, 1}, {"300 K", "300 °C", 0, 0, 0}, {"1.5 kW", "1500 watts", 0, 0, 1}, {"5 MHz", "5000 kHz", 0, 0, 1}, {"2 ha", "20,000 m²", 0, 0, 1}, {"2 acres", "2 hectares", 0, 0, 0},
		{"2 years", "24 months", 0, 0, 1}, {"2 centuries", "200 years", 0, 0, 1}, {"1 year", "365 days", 0, 0, 0}, {"5 GB", "5000 megabytes", 0, 0, 1}, {"101 kPa", "1010 hPa", 0, 0, 1}, {"5 J", "5 N", 0, 0, 0}, {"5 km", "5 volts", 0, 0, 0},
		{"9.8 m/s²", "9.8 m s^-2", 0, 0, 1}, {"5 m/s", "5 m s⁻¹", 0, 0, 1}, {"5 m/s", "5 m s⁻²", 0, 0, 0},
		{"$5 million", "$5M", 0, 0, 1}, {"$5 million", "5 million US dollars", 0, 0, 1}, {"€2.5bn", "2.5 billion euros", 0, 0, 1}, {"5 million", "5m", 0, 0, 0}, {"$5k", "$5000", 0, 0, 1}, {"$30/t", "$30 per tonne", 0, 0, 1}, {"$5 per m", "$5 per metre", 0, 0, 1}, {"$5M/km", "5 million dollars per kilometre", 0, 0, 1}, {"12%", "12 pct", 0, 0, 1},
		// the same unit in other forms
		{"5 μm", "5 µm", 0, 0, 1}, {"5 µm", "0.005 mm", 0, 0, 1}, {"5 μm", "5 m", 0, 0, 0}, {"20 °C", "20 ℃", 0, 0, 1}, {"20 °C", "20 degrees Celsius", 0, 0, 1}, {"20 °C", "20 °F", 0, 0, 0}, {"20 °C", "20 degrees Fahrenheit", 0, 0, 0}, {"90 degrees", "90 radians", 0, 0, 0},
		{"5 liters", "5 L", 0, 0, 1}, {"5 liters", "5 litres", 0, 0, 1}, {"5 L", "5000 ml", 0, 0, 1}, {"2 m³", "2000 l", 0, 0, 1}, {"5 L", "5 m", 0, 0, 0}, {"14 days", "2 weeks", 0, 0, 1}, {"$0.50", "50 cents", 0, 0, 1}, {"$50", "50 cents", 0, 0, 0}, {"€0.50", "50 cents", 0, 0, 0},
		{"100 km/h", "100 kilometers per hour", 0, 0, 1}, {"36 km/h", "10 m/s", 0, 0, 1}, {"60 mph", "60 miles per hour", 0, 0, 1}, {"100 km/h", "100 km", 0, 0, 0}, {"100 km/h", "100 h/km", 0, 0, 0}, {"$5/hour", "5 dollars per hour", 0, 0, 1}, {"100 km/h", "100 mph", 0, 0, 0},
		{"3 box", "3 boxes", 0, 0, 1}, {"3 city", "3 cities", 0, 0, 1}, {"3 movies", "3 movie", 0, 0, 1}, {"3 glass", "3 glasses", 0, 0, 1}, {"3 inch", "3 inches", 0, 0, 1}, {"3 boxes", "3 boys", 0, 0, 0}, {"3 cities", "3 cits", 0, 0, 0},
		{"1990", "1990s", 0, 0, 0}, {"1990s", "1990", 0, 0, 0}, {"1990s", "the 1990s", 0, 0, 1}, {"1990s", "The answer is the 1990's.", 0, 0, 1}, {"1990 s", "1990 seconds", 0, 0, 1}, {"Week 3", "21 days", 0, 0, 0}, {"Week 3", "week 3", 0, 0, 1}, {"Day 5", "5", 0, 0, 0}, {"F-150", "150", 0, 0, 0},
		{"5 km", "It has 2 lanes and 3 bridges.\n\n**Answer**: 5 km", 0, 0, 1}, {"5 km", "It has 2 lanes.\n\n**Final Answer**\n\n5 km", 0, 0, 1}, {"5 km", "It has 2 lanes. {\"answer\": \"5 km\"}", 0, 0, 1}, {"$500", "USD500", 0, 0, 1}, {"₹500", "Rs.500", 0, 0, 1}, {"5 km", "答案：5 km", 0, 0, 1}, {"5 km", `$5\ \mathrm{km}$`, 0, 0, 1}, {"5 km", "The answer is $5$ km.", 0, 0, 1}, {"5 km", `\(5\) km`, 0, 0, 1}, {"5 km", "$5", 0, 0, 0}, {"$5", "5 km", 0, 0, 0}, {"2 lanes", "It has 2 lanes.\n\n**Answer**: 5 km", 0, 0, 0},
	} {
		v, err := New(Options{Kind: Quantity, Tolerance: c.tolerance, Relative: c.relative})
		if err != nil {
			t.Fatal(err)
		}
		got, err := v.Score(t.Context(), Case{Query: task.Query{Answer: c.reference}, Attempt: task.Attempt{Answer: c.answer}})
		if err != nil || got != c.want {
			t.Errorf("%q for %q within %v or %v scores %v, %v; want %v", c.answer, c.reference, c.tolerance, c.relative, got, err, c.want)
		}
	}
}
