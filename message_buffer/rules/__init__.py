"""The rules that say when a batch is due and who owns an account. This package may import `messages` and `aws`."""
