-- renew_token: extend the time that a conversation processor has to complete its batch.
--
-- KEYS[1]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[2]  {b<shard>}:taken:<id>  hash  the frozen batch's id, times and owner
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  token                  str   the token that took the batch
-- Returns  {"RENEWED", until_ms} | {"STALE"}
-- Repeat   renews again
-- Keeps    a batch that was put back, or that another conversation processor has taken

local inflight_key, taken_key = KEYS[1], KEYS[2]
local now_ms, conversation, token = tonumber(ARGV[1]), ARGV[2], ARGV[3]

-- After a retry token_until is 0, and the batch waits for another run, even if the conversation is claimed again.
local taken = redis.call('HMGET', taken_key, 'token', 'token_until', 'token_ms')
if taken[1] ~= token or taken[2] == '0' or not redis.call('ZSCORE', inflight_key, conversation) then return {'STALE'} end

-- Begin with a command that only removes, because a full server refuses a script whose first write might need memory.
redis.call('HDEL', taken_key, 'token_until')
local token_until = now_ms + taken[3]
redis.call('HSET', taken_key, 'token_until', token_until)
redis.call('ZADD', inflight_key, 'XX', token_until - 0.5, conversation)
return {'RENEWED', token_until}
