"""The ingest function: checks a webhook, reads its messages, and writes them into a lane."""
