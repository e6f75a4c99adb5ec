"""The two ways from message to batch, their outcomes, and the fallback between them.

It may import `rules` and every layer below it.
"""
