"""The watchdog: repairs, once a minute, what crashed functions left in Valkey."""
