"""Conversations that a human agent has taken over. This package may import `aws`."""
