"""The errors of the message buffer.

MessageBufferError
├── InvalidInput                the caller's input cannot be accepted; sending it again will not help
│   ├── InvalidId
│   ├── InvalidRules
│   ├── MalformedMessage
│   └── MessageTooLarge
├── InvalidSettings             a function's environment lacks a variable, or one has an impossible value
├── RulesConflict               another operator has changed these rules since they were read
├── LockLost                    (retryable) the lock has expired, and another run may have it
├── TooManyHolds                (retryable) consumers hold as many conversations as they may
├── SendFailed                  (retryable) an AWS service refused a call, or did not respond in time
│   └── TooLittleTime           the function has too little time left for another call
└── StoreError                  Valkey did not carry out a call
    ├── StoreUnavailable        (retryable) no connection, no reply in time, or a fail-over is in progress
    │   └── SignInUnavailable   (retryable) the cache throttles sign-ins, or cannot check them for now
    ├── StoreOutOfMemory        (retryable) the cache is at its storage limit and refuses writes that need memory
    ├── StoreThrottled          (retryable) the cache is at its request limit
    ├── StoreSignInRefused      (retryable) the cache does not accept the user, or its password or token
    └── ScriptInvariantBroken   a bug: a script failed, or returned a reply that its header does not name
"""

from typing import ClassVar


class MessageBufferError(Exception):
    retryable: ClassVar[bool] = False


class InvalidInput(MessageBufferError, ValueError): ...


class InvalidId(InvalidInput): ...


class InvalidRules(InvalidInput): ...


class MalformedMessage(InvalidInput): ...


class MessageTooLarge(InvalidInput): ...


class InvalidSettings(MessageBufferError): ...


class RulesConflict(MessageBufferError): ...


class LockLost(MessageBufferError):
    retryable = True


class TooManyHolds(MessageBufferError):
    retryable = True


class SendFailed(MessageBufferError):
    retryable = True


class TooLittleTime(SendFailed): ...


class StoreError(MessageBufferError): ...


class StoreUnavailable(StoreError):
    retryable = True


class SignInUnavailable(StoreUnavailable): ...


class StoreOutOfMemory(StoreError):
    retryable = True


class StoreThrottled(StoreError):
    retryable = True


class StoreSignInRefused(StoreError):
    # A valid token may be refused for a moment, while new permissions propagate or many functions sign in at once.
    retryable = True


class ScriptInvariantBroken(StoreError): ...
