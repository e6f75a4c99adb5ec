-- list_refusals: return how many messages the shard has refused, by reason and tenant, since its hash `quota` was new.
--
-- KEYS[1]  {b<shard>}:quota       hash  account or tenant -> until when its quota is used up; counts of refusals (README.md)
-- ARGV[1]  limit                  int   return at most this many counts, 1..1000
-- Returns  {"REFUSALS", since_ms | -1, (reason, tenant, count)...}
-- Repeat   reads again
-- Keeps    everything: the script only reads

local quota_key = KEYS[1]
local limit = math.min(tonumber(ARGV[1]), 1000)

local names = redis.call('HGET', quota_key, '')
if not names then return {'REFUSALS', -1} end

local reply = {'REFUSALS', tonumber(string.match(names, '^%d+'))}
for reason, tenant in string.gmatch(names, '//([a-z_]+)/([^/]*)') do
  if #reply >= 2 + 3 * limit then break end
  local count = tonumber(redis.call('HGET', quota_key, '//' .. reason .. '/' .. tenant))
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = reason, tenant, count
end
return reply
