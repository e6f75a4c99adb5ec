-- put_back_expired: put at most `limit` conversations whose claim or token has ended back into pending.
--
-- Reads    inflight_key, pending_key, now_ms, limit
-- Sets     expired: the conversations that were put back

expired = redis.call('ZRANGE', inflight_key, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, limit)
if #expired > 0 then
  local back = {}
  for _, conversation in ipairs(expired) do back[#back + 1], back[#back + 2] = now_ms, conversation end
  -- Begin with a command that only removes, because a full server refuses a script whose first write might need memory.
  redis.call('ZREM', inflight_key, unpack(expired))
  redis.call('ZADD', pending_key, unpack(back))
end
