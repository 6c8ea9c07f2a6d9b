-- KEYS: events results claimed
-- ARGV: id value topic phase
--
-- Writes an answer once and ends the claim on the invocation. results has the answers by id, and claimed the claims of the agent.

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
