package play

import (
	"context"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// TestToolsGetTheRow: a tool that is called in a conversation receives the query's row with all its columns.
func TestToolsGetTheRow(t *testing.T) {
	p := searcher(t)
	var seen []tool.Origin
	p.Tools = &Toolbox{}
	p.Tools.Add(tool.Func("search", "", "query", "", func(ctx context.Context, _ string) (string, error) {
		o, _ := tool.OriginOf(ctx)
		seen = append(seen, o)
		return "found", nil
	}), tool.Limits{})
	dialect, err := p.dialect()
	if err != nil {
		t.Fatal(err)
	}
	stop := dialect.Stops().IDs[0]
	call := "<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"murre\"}}\n</tool_call>"
	p.Policy = &said{turns: [][]int32{append(p.Tokenizer.Encode(call), stop), append(p.Tokenizer.Encode("On Lomm."), stop)}}
	q := task.Query{ID: "q-1", Columns: []byte(`{"id":"q-1","room":"B12"}`)}
	if _, err := p.Play(t.Context(), Conversation{Query: q, Text: "?"}); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 1 || seen[0].Query != "q-1" || string(seen[0].Row) != string(q.Columns) {
		t.Errorf("the tool received %+v", seen)
	}
}
