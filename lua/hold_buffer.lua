-- hold_buffer: put a conversation on hold for people or consumers, until held_until_ms or until the hold is ended.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[5]  {b<shard>}:wake        list  at most one element
-- KEYS[6]  {b<shard>}:conv:<id>   hash  facts that outlast a buffer: generation, frozen batch
-- KEYS[7]  {b<shard>}:held        zset  conversation -> held_until_ms; handoff/<id> -> the end of the mark
-- KEYS[8]  {b<shard>}:holds       hash  people/<id>, consumers/<id>, handoff/<id> -> end, a blank, cause
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  holder                 str   people, consumers or handoff; each has one hold, which for handoff is only a mark
-- ARGV[4]  cause                  str   why the holder holds
-- ARGV[5]  held_until_ms          int   the hold ends at this time, unless it is ended earlier
-- ARGV[6]  start_id               str   names this call; a retry sends the same
-- ARGV[7]  start_ms               int   lifetime of a start reservation
-- ARGV[8]  horizon_ms             int   work due further ahead than this is left to the watchdog
-- ARGV[9]  max_held               int   beside so many holds and marks with a limit, a consumer cannot hold another
-- Returns  {"HELD", held_until_ms, start} | {"FULL"}
-- Repeat   sets the same hold again
-- Keeps    a frozen batch; an earlier hold that ends later. A buffer that was claimed but not taken returns to pending.
--          A mark keeps nothing back, and take_batch hands it out

local pending_key, open_key, inflight_key = KEYS[1], KEYS[2], KEYS[3]
local processor_key, wake_key, conv_key, held_key, holds_key = KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local now, now_ms, conversation = ARGV[1], tonumber(ARGV[1]), ARGV[2]
local holder, cause, held_until = ARGV[3], ARGV[4], tonumber(ARGV[5])
local start_id, start_ms, horizon_ms = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local max_held = tonumber(ARGV[9])

-- include open_buffer: due_at_of
-- include changed_buffer: with_due_at, with_mode

local field = holder .. '/' .. conversation -- this is the id of no conversation, because it has five parts
local hold = redis.call('HGET', holds_key, field)
-- Leave out marks without a limit, which end at 9999999999999, because they may add up for years.
if not hold and holder == 'consumers' and redis.call('ZCOUNT', held_key, '-inf', 9999999999998) >= max_held then
  return {'FULL'}
end
if not hold or tonumber(string.sub(hold, 1, 13)) < held_until then
  redis.call('HSET', holds_key, field, held_until .. ' ' .. cause)
end
-- The conversation's score in `held` keeps messages back, so a mark has a score of its own. recover_expired reads it.
local member = holder == 'handoff' and field or conversation
held_until = math.max(held_until, tonumber(redis.call('ZSCORE', held_key, member)) or 0)
redis.call('ZADD', held_key, held_until, member)
local state = redis.call('HMGET', open_key, conversation, '')
local buffer, alive, start = holder ~= 'handoff' and state[1], state[2], 0
if buffer then
  local frozen = redis.call('HEXISTS', conv_key, 'frozen') == 1
  local due_at = due_at_of(buffer)
  if due_at < held_until then
    due_at = held_until
    buffer = with_due_at(buffer, due_at, 'hold', 'hold')
    if not frozen then
      redis.call('ZREM', inflight_key, conversation)
      redis.call('ZADD', pending_key, due_at, conversation)
    end
  end
  redis.call('HSET', open_key, conversation, with_mode(buffer, frozen and 'f' or 'h'))
  -- include start_or_wake
end
return {'HELD', held_until, start}
