"""The CDK stacks of the message buffer. All resources of a stack have the same lifetime.

This package imports its own modules relatively, and besides them only `message_buffer`.
"""
