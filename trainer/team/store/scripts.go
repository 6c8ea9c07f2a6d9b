package store

import (
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// script is a Lua script whose keys and arguments have names. In its text the names are local variables. Every write is
// a script. It is atomic, and can safely be repeated if its reply was lost. A reply is an array whose first element is the
// result.
type script struct {
	*redis.Script
	keys, args []string
}

// newScript creates a script from the names of its keys and of its arguments, separated by spaces. The last name in each list may end
// in "...": its variable is an array of all remaining keys or arguments.
func newScript(keys, args, text string) *script {
	s := &script{keys: strings.Fields(keys), args: strings.Fields(args)}
	s.Script = redis.NewScript(locals("KEYS", s.keys) + locals("ARGV", s.args) + text)
	return s
}

// locals declares local variables for the elements of a Lua array.
func locals(array string, names []string) string {
	var text strings.Builder
	for i, name := range names {
		if list, ok := strings.CutSuffix(name, "..."); ok {
			fmt.Fprintf(&text, "local %s = {}\nfor i = %d, #%s do %s[i - %d] = %s[i] end\n", list, i+1, array, list, i, array)
		} else {
			fmt.Fprintf(&text, "local %s = %s[%d]\n", name, array, i+1)
		}
	}
	return text.String()
}

// values holds the keys and arguments of a call by their names in the script. The value of a name with "..." is a []string.
type values map[string]any

// inOrder returns the keys and arguments in the script's order. It panics if their names are not the names of the script.
func (s *script) inOrder(v values) (keys []string, args []any) {
	if len(v) != len(s.keys)+len(s.args) {
		panic(fmt.Sprintf("store: a script with the names %v %v is called with %v", s.keys, s.args, v))
	}
	for _, name := range s.keys {
		if list, ok := v[name].([]string); ok {
			keys = append(keys, list...)
		} else {
			keys = append(keys, v[name].(string))
		}
	}
	for _, name := range s.args {
		switch x := v[name].(type) {
		case nil:
			panic(fmt.Sprintf("store: a script is called without its argument %s", name))
		case []string:
			for _, element := range x {
				args = append(args, element)
			}
		default:
			args = append(args, x)
		}
	}
	return keys, args
}

// fencedScript creates a script that does not change anything if the writer's fencing token is not the newest. It has these names in
// addition: epochs, the key of the hash of epochs, the writer's agent, and its token (epoch:nonce). In scripts that publish a topic,
// events is the channel.
func fencedScript(keys, args, text string) *script {
	return newScript("epochs "+keys, "agent token "+args, fence+text)
}

// writtenBy adds the values that every fencedScript needs.
func (v values) writtenBy(at *place) values {
	v["epochs"], v["agent"], v["token"] = at.key("epochs"), at.agent, at.fencingToken()
	return v
}

const fence = `
local own = redis.call('HMGET', epochs, agent, ':nonce')
if (own[1] or '') .. ':' .. (own[2] or '') ~= token then return {'fenced', own[1] or ''} end
local epoch = own[1]
local function announce(channel, topic) redis.call('PUBLISH', channel, topic) end
`

// writeOnce is the beginning of scripts that write a value once and remember its phase for Trim.
const writeOnce = `
local stored = redis.call('HGET', hash, field)
if stored then
  if stored == value then return {'same'} end
  return {'conflict'}
end
redis.call('HSET', hash, field, value)
redis.call('ZADD', phases, step, phase)
`

// writeScript writes a value once, remembers the phase for Trim, and publishes the topic.
var writeScript = fencedScript("events hash phases", "field value topic phase step", writeOnce+`
announce(events, topic)
return {'new'}
`)

// submitScript writes an invocation once and, the first time, appends it to its agent's stream.
var submitScript = fencedScript("events hash phases stream", "field value topic phase step", writeOnce+`
redis.call('XADD', stream, '*', 'id', field, 'v', value)
announce(events, topic)
return {'new'}
`)

// completeScript writes an answer once and ends the claim on the invocation.
var completeScript = fencedScript("events results claimed", "id value topic phase", `
local stored = redis.call('HGET', results, id)
local status = 'new'
if stored then
  status = (stored == value) and 'same' or 'conflict'
else
  redis.call('HSET', results, id, value)
end
redis.call('HDEL', claimed, phase .. ' ' .. id)
if status == 'new' then announce(events, topic) end
return {status}
`)

// versionScript raises an agent's version by one.
var versionScript = fencedScript("events versions record", "version", `
local was = redis.call('HGET', versions, agent)
if was == version then return {'same'} end
if not was or tonumber(was) + 1 ~= tonumber(version) then return {'order', was or '(none: it has not started)'} end
redis.call('HSET', versions, agent, version)
redis.call('XADD', record, '*', 'event', 'version', 'agent', agent, 'epoch', epoch, 'version', version)
announce(events, 'version')
return {'new'}
`)

// stopScript ends the round. The first reason is kept.
var stopScript = fencedScript("events stop", "reason kind", `
if redis.call('EXISTS', stop) == 0 then
  redis.call('HSET', stop, 'agent', agent, 'reason', reason, 'kind', kind)
end
announce(events, 'stop')
return {'new'}
`)

// placeScript only checks the fencing token.
var placeScript = fencedScript("", "", `return {'yours'}`)

// askScript stores the first agent that asked for a stop.
var askScript = fencedScript("meta", "", `
redis.call('HSETNX', meta, 'asked', agent)
return {'new'}
`)

// barrierScript stores that an agent's worker has reached a barrier.
var barrierScript = fencedScript("events barrier", "topic", `
redis.call('HSET', barrier, agent, epoch)
announce(events, topic)
return {'new'}
`)

// recordScript appends a record of the run's numbers, and drops the oldest ones.
var recordScript = fencedScript("records", "kept record", `
redis.call('XADD', records, 'MAXLEN', '~', kept, '*', 'agent', agent, 'record', record)
return {'new'}
`)

// activityScript stores the worker's current activity.
var activityScript = fencedScript("activities", "activity", `
redis.call('HSET', activities, agent, activity)
return {'new'}
`)

// trimScript deletes the phases up to a step, and the counts of workers that were lost in them, including phases that
// were not begun again after a new round.
var trimScript = fencedScript("phases", "step prefix agents...", dropPhases+`
for _, phase in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'losses', '-inf', step)) do
  redis.call('UNLINK', prefix .. 'lost:' .. phase)
  redis.call('ZREM', prefix .. 'losses', phase)
end
dropPhases('-inf', step)
return {'new'}
`)

// dropPhases defines dropPhases, which deletes the keys of a range of phases, except the counts of lost workers. It forms
// the names of the keys from the prefix, whose hash tag keeps them on one node.
const dropPhases = `
local function dropPhases(from, to)
  for _, phase in ipairs(redis.call('ZRANGEBYSCORE', phases, from, to)) do
    for _, kind in ipairs({'plan', 'call', 'result', 'outcome', 'trajectories', 'part', 'manifest'}) do
      redis.call('UNLINK', prefix .. kind .. ':' .. phase)
    end
    for _, name in ipairs(agents) do
      redis.call('UNLINK', prefix .. 'stream:' .. phase .. ':' .. name)
    end
    redis.call('ZREM', phases, phase)
  end
end
`

// beatScript renews a lease. It also returns whether the round was stopped, in case the published message was lost.
var beatScript = fencedScript("lease stop", "leaseToken milliseconds", `
redis.call('SET', lease, leaseToken, 'PX', milliseconds)
if redis.call('EXISTS', stop) == 1 then return {'stopped'} end
return {'new'}
`)

// leaveScript deletes the lease, and the worker's claims, which it will not answer.
var leaveScript = fencedScript("lease claimed", "leaseToken", `
if redis.call('GET', lease) == leaseToken then redis.call('UNLINK', lease, claimed) end
return {'new'}
`)
