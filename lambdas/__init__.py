"""The Lambda functions, one package each: `handler.py` wires one, `service.py` decides.

They may import `message_buffer`, and never each other.
"""
