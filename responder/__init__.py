"""The reference consumer: it answers batches. It imports what any other consumer would, and neither lanes nor rules."""
