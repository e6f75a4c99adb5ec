"""The two lanes, the outcomes of their calls, and the fallback from one to the other.

This package may import `rules` and every layer below it.
"""
