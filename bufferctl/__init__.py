"""The operators' command line, `.venv/bin/bufferctl`, which calls the admin function of a stage.

This package may import `lambdas.canary`, and `message_buffer.rules` with the small modules below it, such as `limits`.
"""
