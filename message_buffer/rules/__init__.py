"""The rules that say when a batch is due and who owns an account. It may import `messages`, and `aws` for its table."""
