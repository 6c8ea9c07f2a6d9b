-- KEYS: meta
-- ARGV:
--
-- Stores the first agent that asked for a stop.

redis.call('HSETNX', meta, 'asked', agent)
return {'new'}
