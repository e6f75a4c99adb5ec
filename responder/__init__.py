"""The reference consumer: it answers batches. It imports what any other consumer may, and neither lanes nor rules."""
