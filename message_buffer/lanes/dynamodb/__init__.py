"""The DynamoDB lane: its table, its triggers, and what it does with a message. Imports aws."""
