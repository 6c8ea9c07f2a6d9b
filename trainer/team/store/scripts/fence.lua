-- KEYS: epochs
-- ARGV: agent token
--
-- Begins a script that does not change anything if the writer's fencing token is not the newest. epochs is the key of the hash of epochs,
-- agent the writer's agent, and token its fencing token (epoch:nonce). The script may use epoch, the writer's epoch, and announce, which
-- publishes a topic. The channel is the key events.

local own = redis.call('HMGET', epochs, agent, ':nonce')
if (own[1] or '') .. ':' .. (own[2] or '') ~= token then return {'fenced', own[1] or ''} end
local epoch = own[1]
local function announce(channel, topic) redis.call('PUBLISH', channel, topic) end
