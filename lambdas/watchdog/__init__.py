"""The watchdog: repairs, twice a minute, what crashed functions left in Valkey."""
