-- forget_conversation: erase a conversation, and replace its message ids with hashes, page by page.
--
-- KEYS[1]  {b<shard>}:pending      zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open         hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight     zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:held         zset  conversation -> held_until_ms; a time in the past has no effect
-- KEYS[5]  {b<shard>}:claimed      list  conversation, due_at_ms, ... of the last claim
-- KEYS[6]  {b<shard>}:conv:<id>    hash  facts that outlast a buffer: generation, frozen batch, rhythm
-- KEYS[7]  {b<shard>}:msgs:<id>    list  buffered payloads, oldest first
-- KEYS[8]  {b<shard>}:batch:<id>   list  the frozen batch
-- KEYS[9]  {b<shard>}:taken:<id>   hash  the frozen batch's id, times and owner
-- KEYS[10] {b<shard>}:seen:<id>    zset  message id -> arrived_at_ms
-- KEYS[11] {b<shard>}:emitted:<id> zset  batch id -> its last_at_ms
-- ARGV[1]  now_ms                  int
-- ARGV[2]  conversation            str
-- ARGV[3]  forget_id               str   names this request to forget; the calls that continue it send the same
-- ARGV[4]  secret                  str   the key of the hashes, unless the conversation has one already
-- ARGV[5]  skip                    int   number of the newest ids that earlier calls have processed
-- ARGV[6]  limit                   int   process at most this many ids, 1..1000
-- ARGV[7]  goes_on                 int   1 = erase no message, because this call continues an earlier one
-- ARGV[8]  seen_ms                 int   how long an idle conversation is remembered
-- ARGV[9]  not_before_ms           int   the other lane's last arrival; at_ms is at least this; 0 = none
-- Returns  {"FORGOTTEN", at_ms, generation, waiting, frozen, leaving_until_ms | -1, skip | -1}
-- Repeat   returns the same reply until a call with another forget_id erases the conversation; keeps newer messages.
--          If goes_on, returns the reply of the last call that erased, or an at_ms of 0 if there was none
-- Keeps    all that was erased arrived until at_ms, and every newer message arrives later; the ids remain known

local pending_key, open_key, inflight_key, holds_key, claimed_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local conv_key, msgs_key, batch_key, taken_key, seen_key, emitted_key =
  KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local now_ms, conversation, forget_id, secret, skip = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local limit, goes_on, seen_ms, not_before_ms = math.min(tonumber(ARGV[6]), 1000), ARGV[7] == '1', tonumber(ARGV[8]), ARGV[9]

-- include open_buffer: last_at_of, base_of
-- include hashed_id: hash_of

local conv = redis.call('HMGET', conv_key, 'generation', 'last_at', 'id_secret', 'forgotten')
local buffer = redis.call('HGET', open_key, conversation)
local done_by, at, generation, waiting, frozen, leaving_until =
  string.match(conv[4] or '- 0 0 0 0 -1', '(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)')
local erases = not goes_on and done_by ~= forget_id
secret = conv[3] or secret
if erases then
  waiting, frozen = redis.call('LLEN', msgs_key), redis.call('LLEN', batch_key)
  local taken = redis.call('HMGET', taken_key, 'token_until', 'last_at')
  leaving_until = (tonumber(taken[1]) or 0) > now_ms and taken[1] or -1
  generation = 1 + (buffer and base_of(buffer) + waiting or conv[1] or 0)
  at = now_ms
  for _, arrived_at in ipairs({not_before_ms, conv[2] or 0, taken[2] or 0, buffer and last_at_of(buffer) or 0}) do
    -- Hosts' clocks differ by up to a minute. A time that is further ahead is wrong, so ignore it.
    if tonumber(arrived_at) < now_ms + 60000 then at = math.max(at, arrived_at) end
  end
  redis.call('UNLINK', msgs_key, batch_key, taken_key, emitted_key, conv_key)
  redis.call('HDEL', open_key, conversation)
  redis.call('ZREM', pending_key, conversation)
  redis.call('ZREM', inflight_key, conversation)
  redis.call('ZREM', holds_key, conversation)
  for i, name in ipairs(redis.call('LRANGE', claimed_key, 0, -1)) do
    if i % 2 == 1 and name == conversation then
      redis.call('LSET', claimed_key, i - 1, '')
      redis.call('LSET', claimed_key, i, '')
    end
  end
  redis.call('LREM', claimed_key, 0, '')
  local answer = table.concat({forget_id, at, generation, waiting, frozen, leaving_until}, ' ')
  redis.call('HSET', conv_key, 'generation', string.format('%010d', generation), 'last_at', at + 1,
    'id_secret', secret, 'forgotten', answer)
  redis.call('HSET', open_key, 'forgotten', at + seen_ms)
end
-- Begin with the newest, because complete_batch may remove the oldest between two calls. Among ids of one millisecond
-- hashes are last, so replacing a page does not move the ids of the next page. Ids newer than `at` stay for edits.
local page = redis.call('ZRANGE', seen_key, -(skip + limit), -(skip + 1), 'WITHSCORES')
local ids, hashes = {}, {}
for i = 1, #page, 2 do
  if string.sub(page[i], 1, 1) ~= '\255' and (erases or tonumber(page[i + 1]) <= tonumber(at)) then
    ids[#ids + 1], hashes[#hashes + 1], hashes[#hashes + 2] = page[i], page[i + 1], hash_of(secret, page[i])
  end
end
if #ids > 0 then
  redis.call('ZREM', seen_key, unpack(ids))
  redis.call('ZADD', seen_key, unpack(hashes))
end
if (erases or not buffer) and redis.call('HEXISTS', conv_key, 'frozen') == 0 then
  redis.call('PEXPIRE', conv_key, seen_ms)
  redis.call('PEXPIRE', seen_key, seen_ms)
end
skip = #page == 2 * limit and skip + limit or -1
return {'FORGOTTEN', tonumber(at), tonumber(generation), tonumber(waiting), tonumber(frozen), tonumber(leaving_until), skip}
