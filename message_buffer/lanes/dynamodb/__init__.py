"""The DynamoDB lane: its table, its triggers, and what it does with a message. It may import `aws`."""
