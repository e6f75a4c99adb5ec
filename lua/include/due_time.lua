-- due_time: compute when a buffer is due, and why. message_buffer/rules/due_time.py states the same formula.
--
-- Times and bounds may be strings, because Lua's arithmetic converts them.
--
-- Reads    buffer, old_due_at, mode, first_at, arrived_at, gap_ms, count, has_max_bytes, now_ms, conversation, holds_key
-- Reads    silence_ms, typing_ms, max_wait_ms, max_messages, min_messages, flush_reason, pressed
-- Reads    k, floor_ms, ceiling_ms, mean, dev, earliest_at
-- Sets     due_at: due time, a number
-- Sets     reason: the event's `flushReason`

if old_due_at and old_due_at <= now_ms then
  due_at, reason = old_due_at, string.sub(buffer, 51) -- the buffer is due already and stays due
else
  -- A press that reaches min_messages waits as a typed message, because the earlier messages waited only for that.
  local wait_ms, is_pressed = silence_ms, pressed ~= '' and (count == 1 or count - min_messages > 0)
  if is_pressed then
    wait_ms = pressed
  elseif mean then
    wait_ms = math.max(floor_ms, math.min(ceiling_ms, math.ceil(mean + k * dev)))
  elseif count > 1 and gap_ms - typing_ms < 0 then
    wait_ms = typing_ms
  end
  local latest_at = first_at + max_wait_ms
  due_at, reason = arrived_at + wait_ms, 'silence'
  if is_pressed and old_due_at and old_due_at > due_at then due_at, reason = old_due_at, string.sub(buffer, 51) end
  if count - min_messages < 0 or due_at >= latest_at then due_at, reason = latest_at, 'max_wait' end
  if due_at < earliest_at then due_at = earliest_at end
  if count - max_messages >= 0 and due_at >= now_ms then due_at, reason = now_ms, 'max_messages' end
  if has_max_bytes and due_at >= now_ms then due_at, reason = now_ms, 'max_bytes' end
  if flush_reason ~= '' and due_at >= now_ms then due_at, reason = now_ms, flush_reason end
  if mode ~= '-' then
    local held_until = tonumber(redis.call('ZSCORE', holds_key, conversation)) or 0
    if held_until > now_ms and due_at < held_until then due_at, reason = held_until, 'hold' end
  end
end
