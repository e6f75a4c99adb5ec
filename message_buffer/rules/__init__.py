"""When a batch is due, by which rules, and who owns an account. Imports messages, and aws for its table."""
