"""Tries a stage from outside, as a customer's program does: shared by the canary function and `bufferctl verify`."""
