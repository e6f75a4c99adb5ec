"""The CDK stacks of the message buffer. All resources of a stack have the same lifetime.

Of our own code, this package imports only its own modules (relatively) and `message_buffer`.
"""
