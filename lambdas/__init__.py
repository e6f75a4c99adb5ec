"""The Lambda functions, each in a package: `handler.py` connects the function's parts, `service.py` has its logic.

These packages may import `message_buffer`, but never each other.
"""
