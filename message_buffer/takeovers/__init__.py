"""Conversations that a person of the business has taken over: how long, and which messages are the bot's own."""
