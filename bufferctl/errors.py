"""The errors that end a command, each with its exit code."""

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


class Failed(Exception):
    code: ClassVar[int] = 1


class Misused(Failed):
    code = 2


class Unreachable(Failed):
    code = 3


@contextmanager
def errors_of_aws() -> Iterator[None]:
    """Turn the SDK's errors, and a missing SDK, into the errors of this module, whose texts are sentences."""
    try:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - the SDK would make --help slow
    except ModuleNotFoundError as missing:
        raise Failed(
            f"The Python package '{missing.name}' is missing. "
            "Run `make setup`, then this command with .venv/bin/python."
        ) from missing

    try:
        yield
    except ClientError as error:
        found = error.response.get("Error", {})
        reason = found.get("Message") or found.get("Code")
        if needs_sign_in(error):
            raise Unreachable(f"AWS refuses the credentials: {str(reason).rstrip('.')}. {SIGN_IN}") from error
        raise Failed(f"AWS refuses {error.operation_name}: {reason}") from error
    except BotoCoreError as error:
        advice = f" {SIGN_IN}" if needs_sign_in(error) else ""
        raise Unreachable(f"AWS cannot be reached: {str(error).rstrip('.')}.{advice}") from error


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
