"""Conversations that a person of the business has taken over: and how long they keep it on hold."""
