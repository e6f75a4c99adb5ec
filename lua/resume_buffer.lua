-- resume_buffer: end one hold, the mark, or all; messages that were kept back are due now, or when the other hold ends.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[4]  {b<shard>}:wake        list  at most one element
-- KEYS[5]  {b<shard>}:held        zset  conversation -> held_until_ms; handoff/<id> -> the end of the mark
-- KEYS[6]  {b<shard>}:holds       hash  people/<id>, consumers/<id>, handoff/<id> -> end, a blank, cause
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  holder                 str   people, consumers or handoff; '' for all
-- ARGV[4]  cause                  str   end the hold only if this is its cause; '' for any
-- ARGV[5]  start_id               str   names this call; a retry sends the same
-- ARGV[6]  start_ms               int   lifetime of a start reservation
-- ARGV[7]  horizon_ms             int   work due further ahead than this is left to the watchdog
-- Returns  {"RESUMED", due_at_ms | -1, start} | {"NOT_ON_HOLD", due_at_ms | -1, start} | {"HELD", held_until_ms, start}
-- Repeat   returns HELD again, or NOT_ON_HOLD after RESUMED, with the same start reservation
-- Keeps    messages behind a frozen batch wait until it is completed

local pending_key, open_key, processor_key, wake_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local held_key, holds_key = KEYS[5], KEYS[6]
local now, now_ms, conversation, holder, cause = ARGV[1], tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local start_id, start_ms, horizon_ms = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])

-- include open_buffer: due_at_of, mode_of
-- include changed_buffer: with_due_at, with_mode

local stays_until, word = 0, 'NOT_ON_HOLD'
for _, each in ipairs({'people', 'consumers', 'handoff'}) do
  local field = each .. '/' .. conversation
  local hold = redis.call('HGET', holds_key, field)
  if hold and (holder == '' or holder == each and (cause == '' or cause == string.sub(hold, 15))) then
    redis.call('HDEL', holds_key, field)
    if each == 'handoff' then
      redis.call('ZREM', held_key, field)
      if tonumber(string.sub(hold, 1, 13)) > now_ms then word = 'RESUMED' end
    end
  elseif hold and each ~= 'handoff' then
    stays_until = math.max(stays_until, tonumber(string.sub(hold, 1, 13)))
  end
end

local state = redis.call('HMGET', open_key, conversation, '')
local buffer, alive, start = state[1], state[2], 0
local due_at = buffer and due_at_of(buffer)
local held_until = tonumber(redis.call('ZSCORE', held_key, conversation)) or 0
-- If held_until has passed, the holds ended by themselves, and do not change the reply.
if held_until > now_ms then word = stays_until > now_ms and 'HELD' or 'RESUMED' end
if held_until > stays_until then
  redis.call('ZREM', held_key, conversation)
  -- Write even a hold that has ended, because recover_expired finds the holds to forget in `held`.
  if stays_until > 0 then redis.call('ZADD', held_key, stays_until, conversation) end
  if buffer then
    local mode, ends_at, reason = mode_of(buffer), now_ms, 'resume'
    if mode == 'h' and stays_until == 0 then mode = '-' end
    if word == 'HELD' then ends_at, reason = stays_until, 'hold' end
    if held_until > now_ms and due_at > ends_at then
      due_at = ends_at
      buffer = with_due_at(buffer, due_at, reason, reason)
      -- XX: only if the conversation is in pending
      if mode ~= 'f' then redis.call('ZADD', pending_key, 'XX', due_at, conversation) end
    end
    redis.call('HSET', open_key, conversation, with_mode(buffer, mode))
  end
end

if due_at then
  -- include start_or_wake
end
return {word, word == 'HELD' and stays_until or due_at or -1, start}
