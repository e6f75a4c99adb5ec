"""What an operator is told when it cannot be done; the message is for them.

InvalidInput        (shared) the request makes no sense
NotFound            there is nothing to do it to
Refused             it was tried, and went wrong in a way that the message names
"""

from message_buffer.errors import MessageBufferError


class NotFound(MessageBufferError):
    pass


class Refused(MessageBufferError):
    pass
