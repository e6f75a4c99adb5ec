"""The errors that end a command, each with its exit status."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

# AWS's codes for a call that may succeed if it is repeated.
TRY_AGAIN = re.compile("Throttling|TooManyRequests|RequestLimitExceeded|ServiceUnavailable|Internal(Failure|Error)")


class Failed(Exception):
    code: ClassVar[int] = 1


class Misused(Failed):
    code = 2


class Unreachable(Failed):
    code = 3


class NotFound(Failed):
    code = 4


class FoundProblems(Failed):
    """The command has done its work, and found problems of the stage."""

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
    FoundProblems.code: "`verify` or `doctor` found problems",
    Incomplete.code: "done in part: run it again",
    130: "interrupted by Ctrl-C",
}


@contextmanager
def errors_of_aws() -> Iterator[None]:
    """Turn the SDK's errors, and a missing SDK, into errors of this module, whose texts are sentences."""
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
        text = f"AWS refuses {error.operation_name}: {found.get('Message') or found.get('Code')}"
        raise _class_of(error.operation_name, str(found.get("Code")))(text) from error
    except NoCredentialsError as error:
        raise Unreachable(
            "AWS cannot be reached: no credentials were found. Sign in (`aws sso login`, or new keys in the "
            "environment) and name the profile in AWS_PROFILE."
        ) from error
    except BotoCoreError as error:
        raise Unreachable(f"AWS cannot be reached: {error}") from error


def _class_of(operation: str, code: str) -> type[Failed]:
    if TRY_AGAIN.search(code):
        return Unreachable
    # CloudFormation's code for a stack that does not exist.
    return NotFound if (operation, code) == ("DescribeStacks", "ValidationError") else Failed
