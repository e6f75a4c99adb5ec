"""The canary: tries a stage from outside, as a customer's program does. `bufferctl verify` makes the same trial.

It may import from `message_buffer` only what a consumer may import.
"""
