package task_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// rooms is a task whose questions are about opening hours of rooms. It may embed another task, such as *jsonl.Task.
type rooms struct{ task.Task }

// Tools gives each agent except the main agent the hours of the query's own rooms.
func (rooms) Tools(q task.Query, role task.AgentRole) []tool.Tool {
	if role.Main {
		return nil
	}
	hours, _ := q.Data.(map[string]string)
	return []tool.Tool{tool.Func("hours", "Returns when a room is open.", "room", "its number",
		func(_ context.Context, room string) (string, error) {
			if hours[room] == "" {
				return "", fmt.Errorf("there is no room %q: give a number such as B12", room)
			}
			return hours[room], nil
		})}
}

// A task that brings a tool of its own.
func ExampleWithTools() {
	var k task.WithTools = rooms{}
	q := task.Query{Text: "When may I visit B12?", Data: map[string]string{"B12": "9 to 17"}}
	hours := k.Tools(q, task.AgentRole{Agent: "clerk"})[0]
	fmt.Println(hours.Call(context.Background(), json.RawMessage(`{"room": "B12"}`)))
	fmt.Println(hours.Call(context.Background(), json.RawMessage(`{"room": "12"}`)))
	// Output:
	// 9 to 17 <nil>
	//  there is no room "12": give a number such as B12
}
