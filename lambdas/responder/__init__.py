"""The reference consumer, which answers batches. Like any other consumer, it imports neither lanes nor rules.

The import contract in `pyproject.toml` names all that a consumer may import of `message_buffer`.
"""
