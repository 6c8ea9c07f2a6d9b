package jsonl

import (
	"path/filepath"
	"strings"
	"testing"
)

// A question may be a list of messages: one of the user, after a system message or none.
func TestQuestionOfMessages(t *testing.T) {
	for messages, want := range map[string]string{
		`[{"role":"user","content":"a?"}]`:                                                      "a?",
		`[{"role":"system","content":"Be brief."},{"role":"user","content":"a?"}]`:              "Be brief.\n\na?",
		`[{"role":"developer","content":""},{"role":"user","content":"a?"}]`:                    "a?",
		`[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"?"}]}]`:   "a?",
		`[{"from":"system","value":"Be brief."},{"from":"human","value":"a?"}]`:                 "Be brief.\n\na?",
		`[{"role":"user","content":"a?","name":null,"tool_calls":[],"from":null,"value":null}]`: "a?",
		`"a plain text"`: "a plain text",
		`"[{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": \"a?\"}]"`: "Be brief.\n\na?",
		`"[{\"a\": 1}]"`: `[{"a": 1}]`, `"[{\"role\": \"admin\"}]"`: `[{"role": "admin"}]`, `"[1, 2"`: "[1, 2", `"[]"`: "[]",
	} {
		rows, err := ReadRows(write(t, `{"prompt":`+messages+`,"reward_model":{"ground_truth":"b","style":"rule"}}`), Fields{Question: "prompt", Answer: "reward_model.ground_truth"})
		if err != nil || rows[0].Question != want || rows[0].Answer != "b" {
			t.Errorf("%s: %+v, %v, want %q", messages, rows, err, want)
		}
	}
}

func TestQuestionOfMessagesRefuses(t *testing.T) {
	user, system, assistant := `{"role":"user","content":"a?"}`, `{"role":"system","content":"s"}`, `{"role":"assistant","content":"c"}`
	for messages, want := range map[string]string{
		`[]`:                  "no messages",
		`["a?"]`:              "message 1: not a JSON object",
		`[[]]`:                "message 1: not a JSON object",
		`[` + system + `]`:    "no message of the user",
		`[` + assistant + `]`: `message 1 has the role "assistant"`,
		`[` + system + `,` + system + `,` + user + `]`:                   `message 2 has the role "system"`,
		`[` + user + `,` + assistant + `]`:                               `message 2 has the role "assistant"; a question is one user message`,
		`[` + user + `,` + assistant + `,` + user + `]`:                  `put the others into it, or read whole conversations with task.layout: sharegpt`,
		`[` + user + `,` + user + `]`:                                    `message 2 has the role "user"`,
		`[{"role":"critic","content":"a?"}]`:                             `message 1 has the role "critic"`,
		`[{"content":"a?"}]`:                                             `message 1: it has no "role"`,
		`[{"role":"user"}]`:                                              `message 1: it has no "content"`,
		`[{"role":"user","content":7}]`:                                  `message 1: "content"`,
		`[{"role":"user","content":""}]`:                                 "message 1 is empty",
		`[{"role":"user","content":[{"type":"image","image":"a.png"}]}]`: `part 1 has the type "image": only texts are supported`,
		`[{"role":"user","content":"a?","images":["a.png"]}]`:            `message 1: "images" is not supported: remove it`,
		`[{"role":"user","content":"a?","from":"human","value":"b?"}]`:   `message 1: "from" is not supported`,
		`{"role":"user","content":"a?"}`:                                 "must be a text, a number or a list of messages",
	} {
		path := write(t, `{"question":"a?","answer":"b"}`+"\n"+`{"question":`+messages+`,"answer":"b"}`)
		if _, err := ReadRows(path, DefaultFields()); err == nil || !strings.Contains(err.Error(), path+`:2: field "question": `) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", messages, err, want)
		}
	}
	for _, question := range []string{`[{"role":"user","content":"a?"}]`, `"[{\"role\":\"user\",\"content\":\"a?\"}]"`} {
		_, err := ReadRows(write(t, `{"question":`+question+`,"answer":"b","images":["a.png"]}`), DefaultFields())
		if err == nil || !strings.Contains(err.Error(), `"images" is not supported`) {
			t.Errorf("%s with images: %v", question, err)
		}
	}
}

// Rows that the layouts verl and sharegpt read, and rows that they refuse.
func TestConversationLayouts(t *testing.T) {
	for _, c := range []struct{ layout, row, question, answer, refused string }{
		{"verl", `{"prompt":[{"role":"user","content":"a?"}],"reward_model":{"ground_truth":["b","c"]}}`, "a?", "b", ""},
		{"verl", `{"prompt":[{"role":"user","content":"a?"}],"reward_model":{"ground_truth":{"target":["b","c"]}},"images":[]}`, "a?", "b", ""},
		{"verl", `{"prompt":"a?","reward_model":{"ground_truth":{"numbers":null,"target":["b","c"]}}}`, "a?", "b", ""},
		{"verl", `{"prompt":"a?","reward_model.ground_truth":4}`, "a?", "4", ""},
		{"verl", `{"prompt":"a?","reward_model":{"ground_truth":{"target":98,"numbers":[44,19,35]}}}`, "", "", `reward_model.ground_truth is an object with "numbers", "target": name the part that is the answer`},
		{"verl", `{"prompt":"a?","reward_model":{"style":"model"}}`, "", "", `no field "reward_model.ground_truth", which rows of this layout have: "reward_model" has "style"`},
		{"verl", `{"prompt":"a?","reward_model":{"ground_truth":null}}`, "", "", "must be a text or a number"},
		{"verl", `{"prompt":"<image>a?","images":[{"bytes":""}],"reward_model":{"ground_truth":"b"}}`, "", "", `"images" is not supported`},
		{"verl", `{"question":"a?","answer":"b"}`, "", "", `no field "prompt"`},
		{"sharegpt", `{"conversations":[{"from":"human","value":"a?"},{"from":"gpt","value":"b"}]}`, "a?", "b", ""},
		{"sharegpt", `{"system":"Be brief.","conversations":[{"from":"human","value":"a?"},{"from":"gpt","value":"b"}]}`, "Be brief.\n\na?", "b", ""},
		{"sharegpt", `{"conversations":[{"from":"human","value":"a?"},{"from":"function_call","value":"{}"},{"from":"observation","value":"x"},{"from":"gpt","value":"b"}]}`, "a?", "b", ""},
		{"sharegpt", `{"messages":[{"role":"system","content":"s"},{"role":"user","content":"a?"},{"role":"assistant","content":"b"}],"conversations":null}`, "s\n\na?", "b", ""},
		{"sharegpt", `{"conversations":[{"from":"human","value":"a?"},{"from":"tool_call","value":"{}"},{"from":"tool_response","value":"x"},{"from":"gpt","value":"b"}]}`, "a?", "b", ""},
		{"sharegpt", `{"conversations":"[{\"from\":\"human\",\"value\":\"a?\"},{\"from\":\"gpt\",\"value\":\"b\"}]"}`, "a?", "b", ""},
		{"sharegpt", `{"messages":[{"role":"user","content":"a?"},{"role":"tool","content":{"x":1}},{"role":"assistant","content":"b"}]}`, "", "", `message 2: "content": must be a text or a list of {"type": "text"`},
		{"sharegpt", `{"conversations":[{"from":"human","value":"a?"},{"from":"tool_call","value":"{}"}]}`, "", "", `message 2 is a call`},
		{"sharegpt", `{"conversations":[{"from":"human","value":"a?"}]}`, "", "", `no answer`},
		{"sharegpt", `{"conversations":[{"from":"human","value":"a?"},{"from":"gpt","value":"b"},{"from":"observation","value":"c"}]}`, "", "", `no answer: the last message has the role "tool"`},
		{"sharegpt", `{"conversations":[{"from":"human","value":"a?"},{"from":"gpt","value":""}]}`, "", "", `message 2 is empty`},
		{"sharegpt", `{"conversations":[{"from":"human","value":"a?"},{"from":"function_call","value":"{}"}]}`, "", "", `message 2 is a call`},
		{"sharegpt", `{"messages":[{"role":"user","content":"a?"},{"role":"assistant","content":"b","tool_calls":[{"id":"c"}]}]}`, "", "", `message 2 is a call`},
		{"sharegpt", `{"conversations":[{"from":"human","value":"a?"},{"from":"gpt","value":"b"},{"from":"human","value":"c?"},{"from":"gpt","value":"d"}]}`, "", "", `message 3 is a second question, but a row has one`},
		{"sharegpt", `{"conversations":[{"from":"human","value":"a?"},{"from":"bing","value":"b"}]}`, "", "", `message 2 has the role "bing"`},
		{"sharegpt", `{"conversations":[{"from":"gpt","value":"a?"},{"from":"human","value":"b"}]}`, "", "", `message 1 has the role "assistant"`},
		{"sharegpt", `{"system":"s","conversations":[{"from":"system","value":"t"},{"from":"human","value":"a?"},{"from":"gpt","value":"b"}]}`, "", "", `two system messages`},
		{"sharegpt", `{"conversations":"a?"}`, "", "", `must be a list of messages`},
		{"sharegpt", `{"question":"a?","answer":"b"}`, "", "", `no field "conversations", which rows of this layout have`},
		{"", `{"conversations":[]}`, "", "", `no field "question": the row has "conversations"; set task.fields.question to the right name, or set task.layout: sharegpt`},
		{"", `{"prompt":[],"reward_model":{}}`, "", "", `or set task.layout: verl`},
	} {
		path := write(t, c.row)
		rows, err := Options{Fields: DefaultFields()}.read(path, c.layout)
		switch {
		case c.refused != "" && (err == nil || !strings.Contains(err.Error(), path+":1: ") || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%s: %v, want %q", c.row, err, c.refused)
		case c.refused == "" && (err != nil || rows[0].Question != c.question || rows[0].Answer != c.answer):
			t.Errorf("%s: %+v, %v", c.row, rows, err)
		}
	}
}

// verl's own files are Parquet: testdata/write_verl.py wrote one with pyarrow, with the columns of verl's GSM8K.
func TestParquetOfVerl(t *testing.T) {
	path := filepath.Join("testdata", "verl.parquet")
	for name, s := range map[string]Options{
		"a layout": {Layout: "verl"},
		"fields":   {Fields: Fields{Question: "prompt", Answer: "reward_model.ground_truth", Kind: "data_source"}},
	} {
		rows, err := s.read(path, s.Layout)
		if err != nil || len(rows) != 2 || rows[0].Question != "Think step by step.\n\nWhat is 2 + 2?" || rows[0].Answer != "4" || rows[0].Kind != "made/sums" || rows[1].Question != "What is 3 + 4?" || rows[1].Answer != "7" {
			t.Errorf("%s: %+v, %v", name, rows, err)
		}
	}
	rows, err := ReadRows(path, Fields{Question: "prompt.0.content", Answer: "extra_info.answer", ID: "extra_info.index"})
	if err != nil || rows[1].Question != "What is 3 + 4?" || rows[1].Answer != "3 + 4 = 7 #### 7" || rows[1].ID != "1" {
		t.Errorf("%+v, %v", rows, err)
	}
}
