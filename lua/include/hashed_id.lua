-- hashed_id: what remains of a message id after its conversation was forgotten.
--
-- Defines  hash_of(secret, id): the hash under the conversation's secret; no id begins with its first byte, as UTF-8 has none

local function hash_of(secret, id) return '\255' .. redis.sha1hex(secret .. id) end
