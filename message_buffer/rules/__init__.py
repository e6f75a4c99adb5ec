"""The rules that say when a batch is due and who owns an account. They may import `messages`, and `aws` for a table."""
