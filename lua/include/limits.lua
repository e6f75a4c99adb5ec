-- limits: unpack the argument `limits`, which `_limits` in the store packs (README.md).
--
-- Its form is '<waiting> <bytes due> <bytes> <account's cost> <opening> <platform>/<account>/[<cost> <opening> <tenant>]'.
--
-- Reads    limits
-- Sets     max_waiting: so many messages may wait in a conversation
-- Sets     due_bytes: a buffer whose large messages have so many bytes is due at once
-- Sets     max_bytes: large messages of so many bytes may wait
-- Sets     account_us: what `every` messages cost the account's quota, in microseconds
-- Sets     opening_us: what an opened buffer costs it
-- Sets     account: its name in `quota`, or '/' if no quota is charged
-- Sets     of_tenant: the same for the tenant, or '' if it has no quota

max_waiting, due_bytes, max_bytes, account_us, opening_us, account, of_tenant =
  string.match(limits, '^(%d+) (%d+) (%d+) (%d+) (%d+) ([^/]*/[^/]*)/(.*)')
