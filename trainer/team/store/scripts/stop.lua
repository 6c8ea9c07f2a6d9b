-- KEYS: events stop
-- ARGV: reason kind
--
-- Ends the round. The first reason is kept.

if redis.call('EXISTS', stop) == 0 then
  redis.call('HSET', stop, 'agent', agent, 'reason', reason, 'kind', kind)
end
announce(events, 'stop')
return {'new'}
