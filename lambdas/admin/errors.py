"""The errors of an operation, whose texts the operator reads.

InvalidInput        (in `message_buffer.errors`) the request is not valid
NotFound            the conversation, the rules or the dead letter do not exist
Refused             the operation failed, and the error's text says why
"""

from message_buffer.errors import MessageBufferError


class NotFound(MessageBufferError):
    pass


class Refused(MessageBufferError):
    pass
