package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const guardedTeam = `run: {name: guarded}
store: {url: "rediss://redis.example:6379/0", password_env: TEST_ACL_PASSWORD}
agents:
  planner: {role: main, model: {width: 8, layers: 1, heads: 2, ffn: 16}}
  solver: {role: sub, model: {width: 8, layers: 1, heads: 2, ffn: 16}}
`

func TestStoreACL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "team.yaml")
	if err := os.WriteFile(path, []byte(guardedTeam), 0o600); err != nil {
		t.Fatal(err)
	}
	out := mustRun(t, "", "store", "acl", path)
	for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
		users := []string{"guarded", "guarded-planner", "guarded-solver", "guarded-status"}
		if !strings.HasPrefix(line, "ACL SETUSER "+users[i]+" on resetkeys resetchannels -@all clearselectors ") {
			t.Errorf("line %d is %s", i, line)
		}
	}
	one := mustRun(t, "", "store", "acl", path, "--agent", "solver")
	if strings.Count(one, "\n") != 1 || !strings.Contains(one, "guarded-solver on") {
		t.Errorf("one user: %s", one)
	}
	t.Setenv("TEST_ACL_PASSWORD", "geheim")
	file := mustRun(t, "", "store", "acl", path, "--agent", "solver", "--file")
	const hash = "#addb0f5e7826c857d7376d1bd9bc33c0c544790a2eac96144a8af22b1298c940" // hash of "geheim"
	if !strings.HasPrefix(file, "user default reset off ~* &* +@all\nuser guarded-solver "+hash+" on ") || strings.Contains(file, "geheim") {
		t.Errorf("ACL file: %s", file)
	}
	wantRefusal(t, "", []string{"store", "acl", path, "--agent", "nobody"}, "nobody", "planner, solver")
	wantRefusal(t, "", []string{"store", "acl", path, "--set", "store.url=", "--set", "store.password_env="}, "store.url")
}
