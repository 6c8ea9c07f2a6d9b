-- KEYS: events
-- ARGV: topic
--
-- Follows write_once.lua: publishes the topic of the new value.

announce(events, topic)
return {'new'}
