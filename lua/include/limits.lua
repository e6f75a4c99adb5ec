-- limits: unpack the argument `limits`, which `_limits` in the store packs (README.md).
--
-- Its form is '<waiting> <bytes due> <bytes> <account's cost> <opening> <platform>/<account>/[<cost> <opening> <tenant>]'.
--
-- Reads    limits
-- Sets     max_waiting: number of messages that may wait in a conversation
-- Sets     due_bytes: bytes of large messages with which a buffer is due at once
-- Sets     max_bytes: bytes of large messages that may wait
-- Sets     account_us: microseconds of the account's quota that `every` messages cost
-- Sets     opening_us: microseconds of it that an opened buffer costs
-- Sets     account: its name in `quota`, or '/' if no quota is charged
-- Sets     of_tenant: the same for the tenant, or '' if it has no quota

max_waiting, due_bytes, max_bytes, account_us, opening_us, account, of_tenant =
  string.match(limits, '^(%d+) (%d+) (%d+) (%d+) (%d+) ([^/]*/[^/]*)/(.*)')
