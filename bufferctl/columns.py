"""The columns of each table that a command prints.

A column shows the field of the same name in the admin function's response.
"""

SHARDS = ("shard", "pending", "inflight", "nextDueAt", "overdueMs", "heartbeatAt")
LISTED = ("conversation", "lane", "shard", "state", "count", "frozen", "reason", "dueAt", "replyUntil")
LETTERS = ("batchId", "conversationId", "messages", "attempt", "lastAt", "reason")
RULES = ("scope", "version", "updatedAt", "updatedBy", "problem")
AGES_OUT = ("place", "days")
WAITS = ("example", "waitMs", "rule")
EXPLAINED = ("rule", "value", "layer", "via", "version")
