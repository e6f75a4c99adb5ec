"""The operators' command line, `.venv/bin/python -m bufferctl`, which calls the admin function of a stage.

This package may import the rules of `message_buffer`, and `lambdas.canary`.
"""
