-- due_time: compute when a buffer is due, and why. message_buffer/rules/due_time.py states the same formula.
--
-- Times and bounds may be strings, because Lua's arithmetic converts them.
--
-- Reads    old_due_at, mode, first_at, arrived_at, gap_ms, count, has_max_bytes, now_ms, conversation, held_key
-- Reads    silence_ms, silence_rule, typing_ms, max_wait_ms, max_messages, min_messages, flush_reason, pressed
-- Reads    learned, earliest_at
-- Sets     due_at: due time, a number
-- Sets     why: '<reason> <rule> <wait_ms>', the event's `flushReason`, `rule` and `appliedWaitMs`; or unchanged

local reason, rule = 'silence', silence_rule
if old_due_at and old_due_at <= now_ms then
  due_at, reason = old_due_at, nil -- the buffer is already due, and stays due for its old reason
else
  -- A press that completes min_messages waits like a typed message, because the earlier messages waited only for it.
  local wait_ms, is_pressed = silence_ms, pressed ~= '' and (count == 1 or count - min_messages > 0)
  if is_pressed then
    wait_ms, rule = pressed, 'pressedSilenceMs'
  elseif learned ~= '' then
    -- Pick one of the message's waits by its place, as place_of of message_buffer/rules/learned.py does.
    local place = count == 1 and (gap_ms and gap_ms <= 30000 and 1 or 0) or count == 2 and 2 or 7
    if count > 1 then
      place = place + (gap_ms > 3000 and 1 or 0) + (gap_ms > 6000 and 1 or 0)
      place = place + (gap_ms > 10000 and 1 or 0) + (gap_ms > 15000 and 1 or 0)
    end
    wait_ms, rule = string.sub(learned, place * 5 + 1, place * 5 + 5), 'learned'
  elseif count > 1 and gap_ms - typing_ms < 0 then
    wait_ms, rule = typing_ms, 'typingInferenceMs'
  end
  local latest_at = first_at + max_wait_ms
  due_at = arrived_at + wait_ms
  if is_pressed and old_due_at and old_due_at > due_at then due_at, reason = old_due_at, nil end
  if count - min_messages < 0 then
    due_at, reason, rule = latest_at, 'max_wait', 'minMessages'
  elseif due_at >= latest_at then
    due_at, reason, rule = latest_at, 'max_wait', silence_rule == 'windowMs' and silence_rule or 'maxWaitMs'
  end
  if due_at < earliest_at then due_at = earliest_at end
  if count - max_messages >= 0 and due_at >= now_ms then due_at, reason, rule = now_ms, 'max_messages', 'maxMessages' end
  if has_max_bytes and due_at >= now_ms then due_at, reason, rule = now_ms, 'max_bytes', 'maxBytes' end
  if flush_reason ~= '' and due_at >= now_ms then due_at, reason, rule = now_ms, flush_reason, silence_rule end
  if mode ~= '-' then
    local held_until = tonumber(redis.call('ZSCORE', held_key, conversation)) or 0
    if held_until > now_ms and due_at < held_until then due_at, reason, rule = held_until, 'hold', 'hold' end
  end
end
if reason then why = reason .. ' ' .. rule .. ' ' .. due_at - arrived_at end
