"""The errors that end a command, each with its exit code."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar


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
        from botocore.exceptions import (  # noqa: PLC0415 - the SDK would make --help slow
            BotoCoreError,
            ClientError,
            NoCredentialsError,
        )
    except ModuleNotFoundError as missing:
        raise Failed(
            f"The Python package '{missing.name}' is missing. "
            "Run `make setup`, then this command with .venv/bin/python."
        ) from missing

    try:
        yield
    except ClientError as error:
        found = error.response.get("Error", {})
        raise Failed(f"AWS refuses {error.operation_name}: {found.get('Message') or found.get('Code')}") from error
    except NoCredentialsError as error:
        raise Unreachable(
            "AWS cannot be reached: no credentials were found. Sign in (`aws sso login`, or new keys in the "
            "environment) and name the profile in AWS_PROFILE."
        ) from error
    except BotoCoreError as error:
        raise Unreachable(f"AWS cannot be reached: {error}") from error
