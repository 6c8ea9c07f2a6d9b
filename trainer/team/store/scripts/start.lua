-- KEYS: versions record meta
-- ARGV: version offered digest date
--
-- Sets the round's date and, once, the first version of an agent. version is 0 or above, and offered is -1 for a start without a
-- checkpoint.

redis.call('HSET', meta, 'date', date)
if tonumber(offered) < 0 then redis.call('HSET', meta, 'afresh', '1') end
if redis.call('HSETNX', versions, agent, version) == 1 then
  redis.call('XADD', record, '*', 'event', 'start', 'agent', agent, 'epoch', epoch, 'version', offered, 'digest', digest)
end
return {'new'}
