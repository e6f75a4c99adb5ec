"""The reference consumer, which answers the batches of the stage's queues.

Like any other consumer, it imports neither lanes nor rules; `pyproject.toml` has the import contract.
"""
