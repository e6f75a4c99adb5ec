-- retime_buffer: compute an open buffer's due time again, because rules have changed.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[4]  {b<shard>}:wake        list  at most one element
-- KEYS[5]  {b<shard>}:msgs:<id>   list  buffered payloads, oldest first
-- KEYS[6]  {b<shard>}:held        zset  conversation -> held_until_ms; a time in the past has no effect
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  silence_ms             int
-- ARGV[4]  typing_ms              int   wait this long if the buffer's mean gap is shorter; 0 = off, or more than silence_ms
-- ARGV[5]  max_wait_ms            int
-- ARGV[6]  max_messages           int
-- ARGV[7]  min_messages           int
-- ARGV[8]  flush_reason           str   '' = wait; any other = due now, for this reason
-- ARGV[9]  start_id               str   names this call; a retry sends the same
-- ARGV[10] start_ms               int   lifetime of a start reservation
-- ARGV[11] horizon_ms             int   work due further ahead than this is left to the watchdog
-- ARGV[12] silence_rule           str   the rule behind silence_ms, or behind flush_reason
-- ARGV[13] learned                str   '' = off; otherwise the newest message's twelve waits, each as five digits
-- Returns  {"RETIMED", due_at_ms, count, start, why} | {"UNMOVED", due_at_ms} | {"EMPTY"}
-- Repeat   returns the same reply, with the same start reservation
-- Keeps    a due buffer remains due; due <= first arrival + max wait, unless a hold ends later; a frozen batch's retry
--          does not move

local pending_key, open_key, processor_key, wake_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local msgs_key, held_key = KEYS[5], KEYS[6]
local now, now_ms, conversation = ARGV[1], tonumber(ARGV[1]), ARGV[2]
local silence_ms, typing_ms, max_wait_ms = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local max_messages, min_messages, flush_reason = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local start_id, start_ms, horizon_ms, silence_rule = ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11]), ARGV[12]
local learned = ARGV[13]

local state = redis.call('HMGET', open_key, conversation, '')
local buffer, alive, start = state[1], state[2], 0
if not buffer then return {'EMPTY'} end
local sub, first_at, last_at, old_due_at, mode, rest, why = string.sub
-- include open_line
if old_due_at < now_ms then return {'UNMOVED', old_due_at} end

-- The last gap is not stored, so use the mean gap. Whether the last message was pressed is not stored, so take it as
-- typed. The bytes of waiting messages are not counted.
local count, arrived_at, pressed, has_max_bytes = redis.call('LLEN', msgs_key), last_at, '', false
local gap_ms = count > 1 and math.max(0, (last_at - first_at) / (count - 1)) -- never below 0, even if clocks differ
local earliest_at = now_ms -- if the due time by the new rules has passed, the buffer is due now
local due_at
-- include due_time
-- Begin with a command that only removes, because a full server refuses a script whose first write might need memory.
redis.call('HDEL', open_key, conversation)
redis.call('HSET', open_key, conversation, first_at .. last_at .. due_at .. rest .. why)
if mode ~= 'f' and due_at < old_due_at then redis.call('ZADD', pending_key, 'XX', due_at, conversation) end

-- include start_or_wake
return {'RETIMED', due_at, count, start, why}
