"""The Lambda functions: `handler.py` wires one, `service.py` decides. They import the library, never each other."""
