"""Events: batches, amendments, cancellations, dead letters, and the bus on which they are published.

This package may import `lanes` and every layer below it.
"""
