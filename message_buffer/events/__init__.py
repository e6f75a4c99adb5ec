"""Events: batches, amendments, cancellations, dead letters, and the bus they go to.

It may import `lanes` and every layer below it.
"""
