package tool_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
)

// A tool that looks up a word. The model reads the result, or the error.
func ExampleFunc() {
	meanings := map[string]string{"rollout": "one attempt of the whole team at a query"}
	glossary := tool.Func("glossary", "Returns the meaning of a term.", "term", "one word, in lower case",
		func(_ context.Context, term string) (string, error) {
			meaning, known := meanings[term]
			if !known {
				return "", fmt.Errorf("the glossary does not have %q", term)
			}
			return meaning, nil
		})
	result, err := glossary.Call(context.Background(), json.RawMessage(`{"term": "rollout"}`))
	fmt.Println(result, err)
	// Output: one attempt of the whole team at a query <nil>
}
