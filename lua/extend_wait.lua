-- extend_wait: the author is typing; wait a little longer, within the bound.
--
-- KEYS[1]  {b<shard>}:moved       hash  conversation -> true due_at_ms, where it is later than pending says
-- KEYS[2]  {b<shard>}:conv:<id>   hash  state of the conversation's open buffer
-- KEYS[3]  {b<shard>}:msgs:<id>   list  buffered payloads, oldest first
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  extend_ms              int
-- ARGV[4]  max_wait_ms            int
-- Returns  {"EXTENDED", due_at_ms} | {"UNMOVED", due_at_ms} | {"EMPTY"}
-- Repeat   UNMOVED
-- Keeps    due <= first arrival + max wait; never creates a buffer, never brings a time forward

local moved_key, conv_key, msgs_key = KEYS[1], KEYS[2], KEYS[3]
local now_ms, conversation, extend_ms, max_wait_ms = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

if redis.call('EXISTS', msgs_key) == 0 then return {'EMPTY'} end
local conv = redis.call('HMGET', conv_key, 'first_at', 'due_at', 'frozen')
local old_due_at, latest_at = tonumber(conv[2]), tonumber(conv[1]) + max_wait_ms
local due_at = math.min(now_ms + extend_ms, latest_at)
if old_due_at <= now_ms or due_at <= old_due_at then return {'UNMOVED', old_due_at} end

redis.call('HSET', conv_key, 'due_at', due_at, 'why', due_at == latest_at and 'max_wait' or 'silence')
if not conv[3] then redis.call('HSET', moved_key, conversation, due_at) end
return {'EXTENDED', due_at}
