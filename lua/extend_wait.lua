-- extend_wait: make an open buffer due later, up to first arrival + max wait, because the author is typing.
--
-- KEYS[1]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  extend_ms              int   the new due time is this far ahead
-- ARGV[4]  max_wait_ms            int
-- Returns  {"EXTENDED", due_at_ms} | {"UNMOVED", due_at_ms} | {"EMPTY"}
-- Repeat   returns UNMOVED
-- Keeps    due <= first arrival + max wait; never creates a buffer, never makes it due earlier

local open_key = KEYS[1]
local now_ms, conversation, extend_ms, max_wait_ms = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

-- include open_buffer: first_at_of, due_at_of
-- include changed_buffer: with_due_at

local buffer = redis.call('HGET', open_key, conversation)
if not buffer then return {'EMPTY'} end
local old_due_at, latest_at = due_at_of(buffer), first_at_of(buffer) + max_wait_ms
local due_at = math.min(now_ms + extend_ms, latest_at)
if old_due_at <= now_ms or due_at <= old_due_at then return {'UNMOVED', old_due_at} end

local reason, rule = 'silence', 'typing'
if due_at == latest_at then reason, rule = 'max_wait', 'maxWaitMs' end
redis.call('HSET', open_key, conversation, with_due_at(buffer, due_at, reason, rule))
return {'EXTENDED', due_at}
