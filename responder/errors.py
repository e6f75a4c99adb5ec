"""How a call to an AI or a channel may fail, told apart by what is known afterwards.

MalformedEvent      (InvalidInput) what the queue held is no event of ours
Refused             it was not done, and asking again will not help
Busy                (retryable) it was not done; later it may be
Unconfirmed         (retryable) nobody knows whether it was done: the answer is missing
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
