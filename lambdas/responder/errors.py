"""Errors of a call to an AI or a channel, by what is known about the call afterwards.

MalformedEvent      (InvalidInput) a delivery of the queue is not an event of the message buffer
Refused             the call had no effect, and another attempt will not help
Busy                (retryable) the call had no effect; a later attempt may succeed
Unconfirmed         (retryable) the call may have had its effect, because its response is missing
"""

from message_buffer.errors import InvalidInput, MessageBufferError


class MalformedEvent(InvalidInput):
    pass


class Refused(MessageBufferError):
    pass


class Busy(MessageBufferError):
    retryable = True


class Unconfirmed(MessageBufferError):
    retryable = True
