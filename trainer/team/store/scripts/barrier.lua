-- KEYS: events barrier
-- ARGV: topic
--
-- Stores that an agent's worker has reached a barrier. barrier has the epochs of these workers by agent.

redis.call('HSET', barrier, agent, epoch)
announce(events, topic)
return {'new'}
