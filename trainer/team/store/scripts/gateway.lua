-- KEYS: events gateway
-- ARGV: address fresh
--
-- Stores the address of an agent's gateway and returns the run's secret. If the run does not have a secret yet, fresh becomes the secret.

redis.call('HSETNX', gateway, ':secret', fresh)
redis.call('HSET', gateway, agent, address)
announce(events, 'gateway')
return {'new', redis.call('HGET', gateway, ':secret')}
