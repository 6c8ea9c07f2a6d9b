-- KEYS: events versions record
-- ARGV: version
--
-- Raises an agent's version by one. versions has the version of each agent, and record the events of the run.

local was = redis.call('HGET', versions, agent)
if was == version then return {'same'} end
if not was or tonumber(was) + 1 ~= tonumber(version) then return {'order', was or '(none: it has not started)'} end
redis.call('HSET', versions, agent, version)
redis.call('XADD', record, '*', 'event', 'version', 'agent', agent, 'epoch', epoch, 'version', version)
announce(events, 'version')
return {'new'}
