-- limits: unpack the argument `limits`, which `_limits` in the store packs (README.md).
--
-- Its form is '<waiting> <bytes due> <bytes> ' and, for each quota, '<cost> <opening> <name>//'.
--
-- Reads    limits
-- Sets     max_waiting: number of messages that may wait in a conversation
-- Sets     due_bytes: bytes of large messages that make a buffer due at once
-- Sets     max_bytes: bytes of large messages that may wait
-- Sets     quotas: for each quota the microseconds that `every` messages cost, those that a new buffer costs, and its name

max_waiting, due_bytes, max_bytes, quotas = string.match(limits, '^(%d+) (%d+) (%d+) (.*)')
