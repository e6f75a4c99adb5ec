"""The reference consumer, which answers the batches of the stage's queues.

Like any other consumer, it imports neither lanes nor rules. The import contract in `pyproject.toml` lists what a
consumer may import from `message_buffer`.
"""
