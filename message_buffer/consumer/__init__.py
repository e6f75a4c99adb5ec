"""Helps consumers to answer batches one turn at a time. This package may import `aws` and `heartbeat`."""
