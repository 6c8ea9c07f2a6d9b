-- KEYS: activities
-- ARGV: activity
--
-- Stores the worker's current activity.

redis.call('HSET', activities, agent, activity)
return {'new'}
