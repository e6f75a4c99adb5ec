"""The reference consumer: it answers batches. Like any other consumer, it imports neither lanes nor rules."""
