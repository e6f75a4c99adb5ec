-- buffer_message: store one message, move its conversation's timer, and return whether the caller must start a processor.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[4]  {b<shard>}:wake        list  at most one element
-- KEYS[5]  {b<shard>}:conv:<id>   hash  facts that outlast a buffer: generation, frozen batch
-- KEYS[6]  {b<shard>}:msgs:<id>   list  buffered payloads, oldest first
-- KEYS[7]  {b<shard>}:seen:<id>   zset  message id -> arrived_at_ms
-- KEYS[8]  {b<shard>}:held        zset  conversation -> held_until_ms; a time in the past has no effect
-- KEYS[9]  {b<shard>}:quota       hash  account, door or tenant -> until when its quota is used up (README.md)
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  message_id             str   the platform's id of the message, unique in its conversation
-- ARGV[4]  payload                bytes opaque
-- ARGV[5]  silence_ms             int
-- ARGV[6]  typing_ms              int   wait this long after a shorter gap; 0 = off, or more than silence_ms
-- ARGV[7]  max_wait_ms            int
-- ARGV[8]  max_messages           int
-- ARGV[9]  min_messages           int
-- ARGV[10] flush_reason           str   '' = wait; any other = due now, for this reason
-- ARGV[11] start_id               str   names this call; a retry sends the same
-- ARGV[12] start_ms               int   lifetime of a start reservation
-- ARGV[13] horizon_ms             int   work due further ahead than this is left to the watchdog
-- ARGV[14] every                  int   check the limits with a buffer's first message, and with generations 1, 1 + every, …
-- ARGV[15] limits                 str   '<waiting> <bytes due> <bytes> ' and, for each quota, '<cost> <opening> <name>//'
-- ARGV[16] pressed                str   '' = the message was typed; otherwise the milliseconds that a press waits
-- ARGV[17] silence_rule           str   the rule behind silence_ms, or behind flush_reason
-- ARGV[18] learned                str   '' = off; otherwise the message's twelve waits, each as five digits
-- Returns  {"BUFFERED", due_at_ms, count, start, why} | {"DUPLICATE", due_at_ms | -1, count, start, why | ""}
--          | {"REFUSED", reason, wait_ms}
-- Repeat   returns DUPLICATE, with the same start reservation; after REFUSED, tries again
-- Keeps    due <= first arrival + max wait, unless a hold ends later; a frozen batch's retry does not move

local call, sub = redis.call, string.sub
local pending_key, open_key, processor_key, wake_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local conv_key, msgs_key, seen_key, held_key, quota_key = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local now, conversation, message_id, payload = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
-- This script is the hot path. The arguments below remain strings, because Lua's arithmetic converts them by itself.
local silence_ms, typing_ms, max_wait_ms = ARGV[5], ARGV[6], ARGV[7]
local max_messages, min_messages, flush_reason = ARGV[8], ARGV[9], ARGV[10]
local start_id, start_ms, horizon_ms, every = ARGV[11], ARGV[12], ARGV[13], ARGV[14]
local limits, pressed, silence_rule, learned = ARGV[15], ARGV[16], ARGV[17], ARGV[18]

local now_ms, minute_ms, small_bytes = now + 0, 60000, 4096 -- up to this size only the number of messages is limited
local state = call('HMGET', open_key, conversation, '')
local buffer, alive = state[1], state[2]
local word, start, count, due_at, why = 'BUFFERED', 0, nil, nil, nil
local first_at, last_at, old_due_at, mode, rest
if buffer then
  -- include open_line
end

-- Is the message known? A repeat stores nothing, but it asks for a processor again.
if call('ZADD', seen_key, 'NX', now, message_id) == 0 then
  word, count, due_at = 'DUPLICATE', call('LLEN', msgs_key), old_due_at
else
  -- Check the quotas. The message is already in the list, because RPUSH returns how many messages wait. Remove it if it
  -- is refused.
  count = call('RPUSH', msgs_key, payload)
  local refused, wait_ms, large, has_max_bytes = nil, 0, nil, false
  -- Count by the generation, because the number of waiting messages does not grow if messages are deleted.
  local is_large, is_counted = #payload > small_bytes, ((buffer and sub(rest, 2) or 0) + count - 1) % every == 0
  if is_large or is_counted then
    local max_waiting, due_bytes, max_bytes, quotas
    -- include limits
    if is_large then -- the field `large` has the buffer's first_at, then the bytes of its large messages
      local before = buffer and call('HGET', conv_key, 'large')
      large = #payload + (before and sub(before, 1, 13) == first_at and sub(before, 14) or 0)
      has_max_bytes = large - due_bytes >= 0
      if large - max_bytes > 0 then refused = 'waiting' end
    end
    if is_counted and count - max_waiting > 0 then refused = 'waiting' end
    if is_counted and not refused and quotas ~= '' then
      -- include charge_quota
    end
    if refused then
      call('LREM', msgs_key, -1, payload)
      call('ZREM', seen_key, message_id)
      return {'REFUSED', refused, wait_ms}
    end
  end

  -- Store the message. A time in the line in `open` has 13 digits, and remains a string if the script only copies it.
  if not buffer then
    local conv = call('HMGET', conv_key, 'generation', 'last_at', 'frozen')
    last_at, mode = conv[2], conv[3] and 'f' or call('ZSCORE', held_key, conversation) and 'h' or '-'
    rest = mode .. (conv[1] or '0000000000')
    call('PERSIST', seen_key) -- the ids of waiting messages may neither expire nor be evicted
  end
  -- A message from a host whose clock lags arrives at the last arrival's time, so that time does not run back. If the
  -- lag is over a minute, the last arrival's clock was wrong, and the message arrives by its own clock.
  local arrived_at, gap_ms = now, last_at and now_ms - last_at
  if gap_ms and gap_ms < 0 then
    if gap_ms >= -minute_ms then arrived_at = last_at end
    gap_ms = 0
  end
  first_at = first_at or arrived_at
  if large then
    call('HSET', conv_key, 'large', first_at .. large)
  elseif not buffer and gap_ms == 0 then
    call('HDEL', conv_key, 'large') -- an earlier buffer may have had the same first arrival
  end

  local earliest_at = 0
  -- include due_time
  call('HSET', open_key, conversation, first_at .. arrived_at .. due_at .. rest .. why)

  -- Schedule the buffer. While a batch is frozen, the conversation is scheduled for that batch, and complete_batch
  -- schedules the buffer.
  if mode ~= 'f' then
    if not buffer then
      call('ZADD', pending_key, due_at, conversation)
    elseif due_at < old_due_at then
      -- Only an earlier time is written to pending; claim_due reads a later time from the open buffer.
      call('ZADD', pending_key, 'XX', due_at, conversation)
    end
  end
end

-- Start, or wake, the processor.
if due_at then
  -- include start_or_wake
end
return {word, due_at or -1, count, start, why or ''}
