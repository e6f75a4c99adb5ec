"""The errors of an operation; the operator reads their messages.

InvalidInput        (shared) the request makes no sense
NotFound            the conversation, the rules or the dead letter do not exist
Refused             the operation failed, and the message says why
"""

from message_buffer.errors import MessageBufferError


class NotFound(MessageBufferError):
    pass


class Refused(MessageBufferError):
    pass
