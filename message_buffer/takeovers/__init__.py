"""Conversations that a person of the business has taken over. This package may import `aws`."""
