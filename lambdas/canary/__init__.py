"""The canary: tries a stage from outside, as a customer's program does. `bufferctl verify` makes the same trial.

It may import of `message_buffer` only what any consumer may.
"""
