"""The columns of each table that a command prints.

Each column has the name of a field in the admin function's response, and shows that field.
"""

SHARDS = ("shard", "pending", "inflight", "nextDueAt", "overdueMs", "heartbeatAt")
LISTED = ("conversation", "lane", "shard", "state", "count", "frozen", "reason", "dueAt", "replyUntil")
LETTERS = ("batchId", "conversationId", "messages", "attempt", "lastAt", "reason")
RULES = ("scope", "version", "updatedAt", "updatedBy", "problem")
AGES_OUT = ("place", "days")
WAITS = ("example", "waitMs", "rule")
EXPLAINED = ("rule", "value", "layer", "via", "version")
