"""Tries a stage from outside, as a customer's program does, for the canary and for `bufferctl verify`."""
