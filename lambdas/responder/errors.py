"""The responder's errors. The errors of a call to an AI or a channel say whether the call had an effect.

MalformedEvent      (InvalidInput) a delivery of the queue is not an event of the message buffer
CallRefused         the call had no effect, and another attempt will not help
    PlaceNotFound   the service has nothing under this URL
CallBusy            (retryable) a later attempt may succeed; if the call was to a channel, it had no effect
CallUnconfirmed     (retryable) the call may have had its effect, because its response is missing
"""

from message_buffer.errors import InvalidInput, MessageBufferError


class MalformedEvent(InvalidInput):
    pass


class CallRefused(MessageBufferError):
    pass


class PlaceNotFound(CallRefused):
    pass


class CallBusy(MessageBufferError):
    retryable = True


class CallUnconfirmed(MessageBufferError):
    retryable = True
