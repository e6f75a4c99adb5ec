"""The errors that end a command, each with its exit status."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

SIGN_IN = "Sign in (`aws sso login`, or new keys in the environment) and name the profile in AWS_PROFILE."
# The codes with which services refuse credentials that are unknown or have expired.
INVALID_CREDENTIALS = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
}
# AWS's codes for a call that may succeed if it is repeated.
TRY_AGAIN = re.compile("Throttling|TooManyRequests|RequestLimitExceeded|ServiceUnavailable|Internal(Failure|Error)")


class Failed(Exception):
    code: ClassVar[int] = 1


class Misused(Failed):
    code = 2


class Unreachable(Failed):
    code = 3


class NoConnection(Unreachable):
    """AWS, or the emulator, refused the connection or closed it."""


class NotFound(Failed):
    code = 4


class Conflict(Failed):
    """The rules have changed since they were read."""


class FoundProblems(Failed):
    """The command has done its work, and found problems in the stage."""

    code = 5


class Incomplete(Failed):
    code = 6


# `bufferctl --help` prints these, and docs/bufferctl.md has the same table.
EXIT_STATUSES = {
    0: "done",
    Failed.code: "refused; the message says why",
    Misused.code: "wrong usage",
    Unreachable.code: "AWS, or the stage's Valkey, cannot be reached: try again",
    NotFound.code: "not found: the stage, conversation, scope or dead letter",
    FoundProblems.code: "`verify`, `doctor` or `secret check` found problems",
    Incomplete.code: "done in part: run it again",
    130: "interrupted by Ctrl-C",
}


@contextmanager
def errors_of_aws() -> Iterator[None]:
    """Turn errors of the SDK into errors of this module, whose texts operators can understand."""
    try:
        yield
    except Exception as error:
        # The SDK is slow to import. If nothing has imported it, the error is not its own.
        if "botocore" not in sys.modules or (found := _understood(error)) is None:
            raise
        raise found from error


def _understood(error: Exception) -> Failed | None:
    """Return the error that the operator sees instead of an error of the SDK, or None for any other error."""
    from botocore import exceptions  # noqa: PLC0415 - the SDK would make --help slow

    if isinstance(error, exceptions.ClientError):
        found = error.response.get("Error", {})
        code, reason = str(found.get("Code")), str(found.get("Message") or found.get("Code"))
        if needs_sign_in(error):
            return Unreachable(f"AWS refuses the credentials: {reason.rstrip('.')}. {SIGN_IN}")
        return _class_of(error.operation_name, code)(f"AWS refuses {error.operation_name}: {reason}")
    if isinstance(error, exceptions.BotoCoreError):
        lost = isinstance(error, exceptions.EndpointConnectionError | exceptions.ConnectionClosedError)
        advice = f" {SIGN_IN}" if needs_sign_in(error) else ""
        return (NoConnection if lost else Unreachable)(f"AWS cannot be reached: {str(error).rstrip('.')}.{advice}")
    return None


def _class_of(operation: str, code: str) -> type[Failed]:
    if TRY_AGAIN.search(code):
        return Unreachable
    # CloudFormation returns this code for a stack that does not exist.
    return NotFound if (operation, code) == ("DescribeStacks", "ValidationError") else Failed


def needs_sign_in(error: Exception) -> bool:
    """Return whether the SDK failed because the caller has no credentials, or only invalid ones."""
    from botocore import exceptions  # noqa: PLC0415 - the SDK would make --help slow

    if isinstance(error, exceptions.ClientError):
        return error.response.get("Error", {}).get("Code") in INVALID_CREDENTIALS
    return isinstance(
        error,
        exceptions.NoCredentialsError
        | exceptions.PartialCredentialsError
        | exceptions.CredentialRetrievalError
        | exceptions.TokenRetrievalError
        | exceptions.SSOError
        | exceptions.LoginError,
    )
