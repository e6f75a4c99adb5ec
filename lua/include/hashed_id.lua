-- hashed_id: what remains of a message id after its conversation was forgotten.
--
-- Defines  hash_of(secret, id): the hash with the conversation's secret; its first byte is not in UTF-8, so no id begins with it

local function hash_of(secret, id) return '\255' .. redis.sha1hex(secret .. id) end
