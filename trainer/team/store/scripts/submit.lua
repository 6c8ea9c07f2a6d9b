-- KEYS: events stream
-- ARGV: field value topic
--
-- Follows write_once.lua: appends the new invocation to its agent's stream, and publishes the topic.

redis.call('XADD', stream, '*', 'id', field, 'v', value)
announce(events, topic)
return {'new'}
