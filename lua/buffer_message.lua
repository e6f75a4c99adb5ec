-- buffer_message: store one message, move its conversation's timer, and return whether the caller must start a processor.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[4]  {b<shard>}:wake        list  at most one element
-- KEYS[5]  {b<shard>}:conv:<id>   hash  facts that outlast a buffer: generation, frozen batch, rhythm
-- KEYS[6]  {b<shard>}:msgs:<id>   list  buffered payloads, oldest first
-- KEYS[7]  {b<shard>}:seen:<id>   zset  message id -> arrived_at_ms
-- KEYS[8]  {b<shard>}:held        zset  conversation -> held_until_ms; a time in the past has no effect
-- KEYS[9]  {b<shard>}:quota       hash  account or tenant -> until when its quota is used up (README.md)
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
-- ARGV[11] adaptive               str   '' = off; 'k floor_ms ceiling_ms' = wait the mean gap + k deviations, within these bounds
-- ARGV[12] start_id               str   names this call; a retry sends the same
-- ARGV[13] start_ms               int   lifetime of a start reservation
-- ARGV[14] horizon_ms             int   work due further ahead than this is left to the watchdog
-- ARGV[15] known_as               str   '' or the name under which older code remembers the message
-- ARGV[16] every                  int   check the limits with messages 1, 1 + every, 1 + 2 every, … of a buffer
-- ARGV[17] limits                 str   bounds, and the quotas that are charged, in the form that README.md describes
-- ARGV[18] pressed                str   '' = the message was typed; otherwise the milliseconds that a press waits
-- Returns  {"BUFFERED", due_at_ms, count, start} | {"DUPLICATE", due_at_ms | -1, count, start}
--          | {"REFUSED", reason, wait_ms}
-- Repeat   returns DUPLICATE, with the same start reservation; after REFUSED, tries again
-- Keeps    due <= first arrival + max wait, unless a hold ends later; a frozen batch's retry does not move

local call, sub = redis.call, string.sub
local pending_key, open_key, processor_key, wake_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local conv_key, msgs_key, seen_key, holds_key, quota_key = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local now, conversation, message_id, payload = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
-- This script is the hot path. The arguments below remain strings, because Lua's arithmetic converts them by itself. The
-- positions in the buffer's line are bare numbers, because the functions of include/open_buffer cost 6 % of the time.
local silence_ms, typing_ms, max_wait_ms = ARGV[5], ARGV[6], ARGV[7]
local max_messages, min_messages, flush_reason = ARGV[8], ARGV[9], ARGV[10]
local adaptive, start_id, start_ms, horizon_ms = ARGV[11], ARGV[12], ARGV[13], ARGV[14]
local known_as, every, limits, pressed = ARGV[15], ARGV[16], ARGV[17], ARGV[18]

local now_ms = now + 0
local state = call('HMGET', open_key, conversation, '', 'forgotten')
local buffer, alive = state[1], state[2]
-- For a day after a conversation of this shard was forgotten, a message may be known only by its hash (include/hashed_id).
local secret = state[3] and state[3] > now and call('HGET', conv_key, 'id_secret')
local word, start, count, due_at = 'BUFFERED', 0, nil, buffer and sub(buffer, 27, 39) + 0

if secret and (call('ZSCORE', seen_key, '\255' .. redis.sha1hex(secret .. message_id))
  or known_as ~= '' and call('ZSCORE', seen_key, '\255' .. redis.sha1hex(secret .. known_as)))
  or call('ZADD', seen_key, 'NX', now, message_id) == 0 or known_as ~= '' and call('ZSCORE', seen_key, known_as) then
  word, count = 'DUPLICATE', call('LLEN', msgs_key)
else
  count = call('RPUSH', msgs_key, payload)
  local refused, wait_ms, large, due_bytes = nil, 0, nil, nil
  if #payload > 4096 then -- smaller messages are bounded by their number
    local before, max_bytes = buffer and call('HGET', conv_key, 'large'), nil
    due_bytes, max_bytes = string.match(limits, '^%d+ (%d+) (%d+)')
    large = #payload + (before and sub(before, 1, 13) == sub(buffer, 1, 13) and sub(before, 14) or 0)
    if large - max_bytes > 0 then refused = 'waiting' end
  end
  if (count - 1) % every == 0 and not refused then
    local max_waiting, account_us, opening_us, account, of_tenant =
      string.match(limits, '^(%d+) %d+ %d+ (%d+) (%d+) ([^/]*/[^/]*)/(.*)')
    if count - max_waiting > 0 then refused = 'waiting' end
    -- Each charge is three values: a name in `quota`, its cost in microseconds, and the reason if it is refused.
    local spent
    if buffer then
      spent = {account, account_us, 'account_messages'}
    elseif every ~= '1' then
      spent = {'/' .. account, opening_us, 'account_conversations'} -- includes the first `every` messages
    else
      spent = {account, account_us, 'account_messages', '/' .. account, opening_us, 'account_conversations'}
    end
    if of_tenant ~= '' then
      local n, tenant_us, tenant_opening_us, tenant = #spent, string.match(of_tenant, '^(%d+) (%d+) (.+)')
      spent[n + 1], spent[n + 2], spent[n + 3] = tenant, tenant_us, 'tenant_messages'
      if not buffer then
        spent[n + 4], spent[n + 5], spent[n + 6] = '/' .. tenant, tenant_opening_us, 'tenant_conversations'
      end
    end
    for i = 1, (refused or account == '/') and 0 or #spent, 3 do
      local name, cost_us = spent[i], spent[i + 1]
      local ahead_us = call('HINCRBY', quota_key, name, cost_us) - now_ms * 1000
      if ahead_us < (1 - every) * 1000000 or ahead_us > 120000000 + 2 * cost_us then
        -- The quota was not used for a while, or a host with a wrong clock used it, so make it full again. If eight
        -- messages are charged at once, its time may lag by seven seconds, which saves most of these writes.
        if ahead_us + now_ms * 1000 - cost_us == 0 then call('PEXPIRE', quota_key, 3600000, 'NX') end
        call('HSET', quota_key, name, string.format('%.0f', now_ms * 1000 + cost_us))
      elseif ahead_us > 60000000 and ahead_us - cost_us > 0 then
        refused, wait_ms = spent[i + 2], math.ceil((ahead_us - math.max(60000000, cost_us)) / 1000)
        for j = 1, i, 3 do call('HINCRBY', quota_key, spent[j], '-' .. spent[j + 1]) end
        break
      end
    end
  end
  if refused then
    call('LREM', msgs_key, -1, payload)
    call('ZREM', seen_key, message_id)
    return {'REFUSED', refused, wait_ms}
  end
  -- Times are 13 digits in the open buffer, and remain strings where the script only copies them.
  local first_at, last_at, mode, rest, reason
  if buffer then
    first_at, last_at, mode, rest = sub(buffer, 1, 13), sub(buffer, 14, 26), sub(buffer, 40, 40), sub(buffer, 40, 50)
  else
    local conv = call('HMGET', conv_key, 'generation', 'last_at', 'frozen')
    local held = call('ZSCORE', holds_key, conversation)
    first_at, last_at, mode = now, conv[2], conv[3] and 'f' or held and 'h' or '-'
    rest = mode .. (conv[1] or '0000000000')
    call('PERSIST', seen_key) -- the ids of waiting messages may neither expire nor be evicted
  end
  -- A message from a host whose clock lags arrives at the last arrival's time, so that time does not run back. If the
  -- lag is over a minute, the last arrival's clock was wrong, and the message arrives by its own clock.
  local arrived_at, gap_ms = now, last_at and now_ms - last_at
  if gap_ms and gap_ms < 0 then
    if gap_ms >= -60000 then arrived_at = last_at end
    gap_ms = 0
  end
  if not buffer then first_at = arrived_at end
  if large then call('HSET', conv_key, 'large', first_at .. large) end
  -- Remove the bytes of an earlier buffer that may have had the same first arrival.
  if not buffer and gap_ms == 0 and not large then call('HDEL', conv_key, 'large') end

  local wait_ms, rhythm = silence_ms, nil
  if adaptive ~= '' then
    local k, floor_ms, ceiling_ms = string.match(adaptive, '(%S+) (%S+) (%S+)')
    rhythm = call('HMGET', conv_key, 'gap_mean', 'gap_dev')
    local mean, dev = tonumber(rhythm[1]), tonumber(rhythm[2])
    -- Smooth the gaps as RFC 6298 smooths round-trip times. Longer gaps do not belong to one thought.
    if gap_ms and gap_ms <= tonumber(ceiling_ms) and pressed == '' then
      dev = mean and 0.75 * dev + 0.25 * math.abs(mean - gap_ms) or gap_ms / 2
      mean = mean and 0.875 * mean + 0.125 * gap_ms or gap_ms
      mean, dev = string.format('%.1f', mean), string.format('%.1f', dev) -- wait by the rhythm as it is stored
      call('HSET', conv_key, 'gap_mean', mean, 'gap_dev', dev)
    end
    rhythm = mean
    if mean then wait_ms = math.max(floor_ms, math.min(ceiling_ms, math.ceil(mean + k * dev))) end
  end
  if not rhythm and buffer and gap_ms - typing_ms < 0 then wait_ms = typing_ms end
  -- A press that reaches min_messages waits as a typed message, because the earlier messages waited only for that.
  local is_pressed = pressed ~= '' and (not buffer or count - min_messages > 0)
  if is_pressed then wait_ms = pressed end

  local old_due_at = due_at
  if buffer and old_due_at <= now_ms then
    reason = sub(buffer, 51) -- the buffer is due already and stays due; the message joins it
  else
    local latest_at = first_at + max_wait_ms
    due_at, reason = arrived_at + wait_ms, 'silence'
    if is_pressed and buffer and old_due_at > due_at then due_at, reason = old_due_at, sub(buffer, 51) end
    if count - min_messages < 0 or due_at >= latest_at then due_at, reason = latest_at, 'max_wait' end
    if count - max_messages >= 0 and due_at >= now_ms then due_at, reason = now_ms, 'max_messages' end
    if large and large - due_bytes >= 0 and due_at >= now_ms then due_at, reason = now_ms, 'max_bytes' end
    if flush_reason ~= '' and due_at >= now_ms then due_at, reason = now_ms, flush_reason end
    if mode ~= '-' then
      local held_until = tonumber(call('ZSCORE', holds_key, conversation)) or 0
      if held_until > now_ms and due_at < held_until then due_at, reason = held_until, 'hold' end
    end
  end
  call('HSET', open_key, conversation, first_at .. arrived_at .. due_at .. rest .. reason)

  -- While a batch is frozen, the conversation is scheduled for that batch; complete_batch schedules this buffer.
  if mode ~= 'f' then
    if not buffer then
      call('ZADD', pending_key, due_at, conversation)
    elseif due_at < old_due_at then
      -- Only an earlier time is written to pending; claim_due reads a later time from the open buffer.
      call('ZADD', pending_key, 'XX', due_at, conversation)
    end
  end
end

if due_at then
  -- include start_or_wake
end
return {word, due_at or -1, count, start}
