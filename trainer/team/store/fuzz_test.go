package store

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

// FuzzDecode: decoding any text gives a MalformedError, or a valid value that is the same after it is encoded and decoded again.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"phase":{"kind":"step","step":3},"query":"q","rollout":0,"agent":"help","index":0,"task":"t"}`,
		`{"query":"q","rollout":1,"format":true,"correct":1,"reward":0.1,"calls":{"help":2}}`,
		`{"queries":["a","b"],"rollouts":8}`,
		`["a","b"]`,
		`{"cpu_features":"avx2","ledger_size":7,"ledger_sha256":"` + strings.Repeat("ab", 32) + `","files":[{"path":"config.json","size":3,"sha256":"` + strings.Repeat("0F", 32) + `"}]}`,
		`{"cpu_features":"","ledger_size":0,"ledger_sha256":"","files":[{"path":"../../x","size":-1,"sha256":"00"}]}`,
		`"` + strings.Repeat("7e", 32) + `"`,
		`{"text":"a","failed":"NaN"}`,
		`{"protocol":1,"agents":["a"],"config":{"k":"v"},"deterministic":true}`,
		`[{"version":3,"digest":"ab"},{"version":-1}]`,
		`true`, "\x00\xff", `{"text":"a"}{}`, `{"text":"a","Text":"b"}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		decoded[Invocation](t, text)
		decoded[Result](t, text)
		decoded[Outcome](t, text)
		decoded[Plan](t, text)
		decoded[idList](t, text)
		decoded[Part](t, text)
		decoded[sha256Text](t, text)
		decoded[agreement](t, text)
		decoded[offers](t, text)
	})
}

func decoded[T any, P interface {
	*T
	checker
}](t *testing.T, text string) {
	t.Helper()
	v, err := decode[T, P]("k", text)
	var bad *MalformedError
	if err != nil {
		if !errors.As(err, &bad) {
			t.Errorf("%T: got error %v, want a MalformedError", v, err)
		}
		return
	}
	written, err := encode(v)
	if err != nil {
		t.Fatalf("%T: a decoded value cannot be encoded: %v", v, err)
	}
	again, err := decode[T, P]("k", written)
	if err != nil {
		t.Fatalf("%T: an encoded value cannot be decoded: %v: %s", v, err, written)
	}
	if twice, err := encode(again); err != nil || twice != written {
		t.Errorf("%T is encoded as %s, and as %s after decoding; error %v", v, written, twice, err)
	}
}

// reply makes a script's answer, a list of texts and whole numbers, from JSON.
func reply(text string) (out []any, ok bool) {
	var parts []any
	if json.Unmarshal([]byte(text), &parts) != nil {
		return nil, false
	}
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			out = append(out, p)
		case float64:
			out = append(out, int64(p))
		default:
			out = append(out, nil)
		}
	}
	return out, true
}

// FuzzReplies: any answer of a script is read as a valid answer or as a MalformedError.
func FuzzReplies(f *testing.F) {
	f.Add(`["entries","more","1-1","{\"phase\":{\"kind\":\"step\",\"step\":0},\"query\":\"q\",\"rollout\":0,\"agent\":\"help\",\"index\":0,\"task\":\"t\"}","q/0/help/0","3","1-2","{\"phase\":{\"kind\":\"step\",\"step\":0},\"query\":\"q\",\"rollout\":1,\"agent\":\"help\",\"index\":0,\"task\":\"t\"}","q/1/help/0","0"]`)
	f.Add(`["joined","2","NONCE"]`)
	f.Add(`["taken","","x"]`)
	f.Add(`["stopping"," boss","help","why"]`)
	f.Add(`["differs"," boss","{\"protocol\":3,\"agents\":[\"boss\"],\"config\":{}}"]`)
	f.Add(`[]`)
	f.Add(`[7,null]`)
	f.Fuzz(func(t *testing.T, text string) {
		r, ok := reply(text)
		if !ok {
			return
		}
		var bad *MalformedError
		all, err := readClaims(r, "stream", "help", TrainPhase(0))
		if err == nil && len(all) == 0 {
			t.Error("the answer to a claim was read without an error and has no invocation")
		}
		for _, c := range all {
			if c.Agent != "help" || c.Phase != TrainPhase(0) {
				t.Errorf("claimed %+v, want an invocation of help in step-0", c)
			}
		}
		if err != nil && !errors.As(err, &bad) {
			t.Errorf("claim: got error %v, want a MalformedError", err)
		}
		j, err := newJoining(newMember(&Store{opt: Options{Run: "r"}}, "help"), team)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := j.read(r)
		if err != nil && !errors.As(err, &bad) {
			t.Errorf("join: got error %v, want a MalformedError", err)
		}
		if err == nil && answer.refusal == nil && answer.epoch < 1 {
			t.Errorf("joined with epoch %d, want 1 or more", answer.epoch)
		}
	})
}

// FuzzVersions: any text is read as a version, a whole number of at least 0, or as a MalformedError.
func FuzzVersions(f *testing.F) {
	f.Add("boss", "3")
	f.Add("help", "-1")
	f.Add("", "many")
	f.Fuzz(func(t *testing.T, agent, text string) {
		there, err := readVersions("k", map[string]string{agent: text})
		var bad *MalformedError
		if err != nil && !errors.As(err, &bad) || err == nil && there[agent] < 0 {
			t.Errorf("got versions %v and error %v, want no negative version, or a MalformedError", there, err)
		}
	})
}

// FuzzStart: the chosen start is offered by both agents. There is no start only if the agents have no offer in common.
func FuzzStart(f *testing.F) {
	f.Add(`[{"version":3,"digest":"ab"},{"version":-1}]`, `[{"version":3,"digest":"cd"},{"version":-1}]`)
	f.Add(`[{"version":1,"digest":"a"}]`, `[{"version":1,"digest":"a"}]`)
	f.Fuzz(func(t *testing.T, one, two string) {
		a, err := decode[offers]("k", one)
		if err != nil {
			return
		}
		b, err := decode[offers]("k", two)
		if err != nil {
			return
		}
		start, err := newestShared([]string{"boss", "help"}, map[string]offers{"boss": a, "help": b})
		if err == nil && !(slices.Contains(a, start.Offer) && slices.Contains(b, start.Offer)) {
			t.Errorf("from offers %s and %s: got start %+v, want an offer of both", one, two, start)
		}
		if err != nil && slices.ContainsFunc(a, func(o Offer) bool { return slices.Contains(b, o) }) {
			t.Errorf("offers %s and %s share a state: got error %v", one, two, err)
		}
	})
}
