"""The rules that say when a batch is due and who owns an account. Imports messages, and aws for its table."""
