"""The operators' command line, `.venv/bin/python -m bufferctl`, which calls the admin function of a stage.

Of the functions' code, this package may import only the product's rules for messages (`message_buffer.rules`) and
`lambdas.canary`.
"""
