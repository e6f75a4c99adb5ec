"""The conversation processor: emits one conversation's batch of the Valkey lane as an event."""
