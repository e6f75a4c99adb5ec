"""The DynamoDB lane: its methods, its table and its triggers. This package may import `aws`."""
