-- limits: unpack the argument `limits`, which `_limits` in the store packs (README.md).
--
-- Its form is '<waiting> <bytes due> <bytes> <account's cost> <opening> <platform>/<account>/[<cost> <opening> <tenant>]'.
--
-- Reads    limits
-- Sets     max_waiting: number of messages that may wait in a conversation
-- Sets     due_bytes: bytes of large messages that make a buffer due at once
-- Sets     max_bytes: bytes of large messages that may wait
-- Sets     account_us: microseconds of the account's quota that `every` messages cost
-- Sets     opening_us: microseconds of the account's quota that a new buffer costs
-- Sets     account: the account's name in `quota`, or '/' if no quota is charged
-- Sets     of_tenant: the tenant's two costs and name, or '' if the tenant has no quota

max_waiting, due_bytes, max_bytes, account_us, opening_us, account, of_tenant =
  string.match(limits, '^(%d+) (%d+) (%d+) (%d+) (%d+) ([^/]*/[^/]*)/(.*)')
