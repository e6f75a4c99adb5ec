-- charge_quota: charge the quotas of a message's account, door and tenant; if one is used up, charge none of them.
--
-- The hash `quota` has a time in microseconds for each quota. Each message moves that time ahead by the message's cost.
-- If the time is more than a minute ahead of now, the quota is used up.
--
-- Reads    call, quota_key, now_ms, every, buffer, quotas
-- Sets     refused: the reason, if a quota is used up
-- Sets     wait_ms: after this time the quota has room again

local now_us, minute_us, second_us, hour_ms = now_ms * 1000, 60000000, 1000000, 3600000
-- Each charge is three values: a name in `quota`, the cost in microseconds, and the reason if the quota is used up.
local spent, n = {}, 0
for messages_us, opening_us, name in string.gmatch(quotas, '(%d+) (%d+) (.-)//') do
  local whose = string.find(name, '/', 1, true) and 'account' or 'tenant' -- a door is an account
  if buffer or every == '1' then -- an opened buffer also pays for its first `every` messages
    spent[n + 1], spent[n + 2], spent[n + 3], n = name, messages_us, whose .. '_messages', n + 3
  end
  if not buffer then
    spent[n + 1], spent[n + 2], spent[n + 3], n = '/' .. name, opening_us, whose .. '_conversations', n + 3
  end
end
for i = 1, n, 3 do
  local name, cost_us = spent[i], spent[i + 1]
  local ahead_us = call('HINCRBY', quota_key, name, cost_us) - now_us
  if ahead_us < (1 - every) * second_us or ahead_us > 2 * minute_us + 2 * cost_us then
    -- The quota was not used for a while, or a host with a wrong clock used it, so make it full again. If `every` is 8,
    -- the quota's time may lag by seven seconds, which saves most of these writes.
    if ahead_us + now_us - cost_us == 0 then call('PEXPIRE', quota_key, hour_ms, 'NX') end
    call('HSET', quota_key, name, string.format('%.0f', now_us + cost_us))
  elseif ahead_us > minute_us and ahead_us - cost_us > 0 then
    refused, wait_ms = spent[i + 2], math.ceil((ahead_us - math.max(minute_us, cost_us)) / 1000)
    for j = 1, i, 3 do call('HINCRBY', quota_key, spent[j], '-' .. spent[j + 1]) end
    break
  end
end
