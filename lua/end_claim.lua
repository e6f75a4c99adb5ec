-- end_claim: put back a conversation whose conversation processor died, before or after its take.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[5]  {b<shard>}:wake        list  at most one element
-- KEYS[6]  {b<shard>}:taken:<id>  hash  the frozen batch's id, times and owner
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  deadline_ms            int   names the claim for which the run was started
-- ARGV[4]  claim_ms               int   the claim was made this long before its deadline
-- ARGV[5]  calm_ms                int   deaths are counted from 1 if the last one's pause ended this long ago
-- ARGV[6]  pause_ms               int   pause after the second death in a row; it doubles with each death
-- ARGV[7]  most_pause_ms          int   the pause is at most this
-- ARGV[8]  start_id               str   names this call; a retry sends the same
-- ARGV[9]  start_ms               int   lifetime of a start reservation
-- ARGV[10] horizon_ms             int   work due further ahead than this is left to the watchdog
-- Returns  {"ENDED", due_at_ms, start} | {"STALE", start}
-- Repeat   returns STALE, with the same start reservation
-- Keeps    the claim and the batch of every other run; the next take counts the death of a run that had taken the batch

local pending_key, open_key, inflight_key, processor_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local wake_key, taken_key = KEYS[5], KEYS[6]
local now, now_ms, conversation, deadline, claim_ms = ARGV[1], tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local calm_ms, pause_ms, most_pause_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local start_id, start_ms, horizon_ms = ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])

-- include pause_after: pause_after

local found = redis.call('HMGET', processor_key, 'untaken_deaths', 'untaken_at', 'starting_by')
local score, start = tonumber(redis.call('ZSCORE', inflight_key, conversation)), found[3] == start_id and 1 or 0
local taken = redis.call('HMGET', taken_key, 'token', 'token_until', 'deaths')
-- The score in inflight is the token's end - 0.5 while the batch is taken; a later claim sets another score.
local is_taken = score and math.ceil(score) == tonumber(taken[2])
local is_dead = score and score == tonumber(deadline)
if is_taken then is_dead = string.sub(taken[1], 1, #deadline + 1) == deadline .. '.' end
if not is_dead then return {'STALE', start} end

redis.call('ZREM', inflight_key, conversation)
local pause
if is_taken then
  pause = pause_after((tonumber(taken[3]) or 0) + 1, pause_ms, most_pause_ms)
  -- The time is not 0, so that the next take counts the death, and past by every host's clock, so the take succeeds.
  redis.call('HSET', taken_key, 'token_until', now_ms - 60000)
else
  -- Deaths of claims that were made together, or during the pause after the last death, count once. Otherwise the pause
  -- would grow with the number of conversations. complete_batch and retry_batch reset the count.
  local deaths, at = tonumber(found[1]) or 0, tonumber(found[2]) or 0
  pause = pause_after(deaths, pause_ms, most_pause_ms)
  if now_ms - at > calm_ms + pause then deaths, pause = 0, 0 end
  if deaths == 0 or deadline - claim_ms >= at + pause then
    deaths = deaths + 1
    redis.call('HSET', processor_key, 'untaken_deaths', deaths, 'untaken_at', now_ms)
  end
  pause = pause_after(deaths, pause_ms, most_pause_ms)
end
local due_at = now_ms + pause
redis.call('ZADD', pending_key, due_at, conversation)

local alive = redis.call('HGET', open_key, '')
-- include slot_freed
-- include start_or_wake
return {'ENDED', due_at, start}
