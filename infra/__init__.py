"""The CDK stacks of the message buffer. Each stack has resources of one lifetime.

This package imports its own modules relatively, and besides them only `message_buffer`.
"""
