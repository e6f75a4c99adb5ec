-- forget_ids: forget a conversation's oldest message ids if it has more than `max_seen`.
--
-- Reads    seen_key, max_seen
-- Defines  forget_ids(until_ms): forgets the ids above max_seen, but none newer than until_ms

local function forget_ids(until_ms)
  local excess = redis.call('ZCARD', seen_key) - max_seen
  if excess > 0 then excess = math.min(excess, redis.call('ZCOUNT', seen_key, '-inf', until_ms)) end
  if excess > 0 then redis.call('ZREMRANGEBYRANK', seen_key, 0, excess - 1) end
end
