"""The requests of operators: one model for each operation, with the field names of the JSON event."""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lambdas.operations import MAX_CALLER_CHARACTERS, MAX_ID_CHARACTERS
from message_buffer.errors import InvalidInput
from message_buffer.events.hand_offs import MAX_REASON_CHARACTERS
from message_buffer.limits import MAX_HOLD_MS, MAX_LISTED

Name = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARACTERS)]

# Text for people, which is published, but not logged.
Reason = Annotated[str | None, Field(min_length=1, max_length=MAX_REASON_CHARACTERS)]


class Request(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", defer_build=True)

    by: Annotated[str, Field(min_length=1, max_length=MAX_CALLER_CHARACTERS)]
    """The name that the caller claims to have. It is stored with the caller's changes. Only CloudTrail records the true
    caller."""


class OfConversation(Request):
    conversation: Name


class ShowConversation(OfConversation):
    messages: bool = False
    """Show what people wrote."""


class ListConversations(Request):
    tenant: Name | None = None
    platform: Name | None = None
    cursor: Annotated[str | None, Field(min_length=1, max_length=64)] = None
    """The `next` that the previous call returned. It contains a shard, and a position of at most 20 digits."""
    # A long page takes long, because the function reads the states of the conversations one after the other.
    limit: Annotated[int, Field(ge=1, le=MAX_LISTED)] = 50


class HoldConversation(OfConversation):
    hold_ms: Annotated[int, Field(ge=1, le=MAX_HOLD_MS, alias="holdMs")]


class ResumeConversation(OfConversation):
    reason: Reason = None


class CompleteConversation(OfConversation):
    summary: Reason = None


class HandOffConversation(OfConversation):
    reason: Reason = None
    hold_ms: Annotated[int | None, Field(ge=1, alias="holdMs")] = None
    """None if the hand-off has no limit."""


class ForgetConversation(OfConversation):
    dry_run: Annotated[bool, Field(alias="dryRun")] = False
    """Only count what would be erased."""
    at_ms: Annotated[int | None, Field(alias="at", ge=0)] = None
    """The `at` that the first call returned, if this call continues an unfinished one."""


class LookUpId(Request):
    id: Name
    """The id of a conversation or a batch."""


class OfScope(Request):
    scope: Name


class ListRules(Request):
    prefix: Annotated[str, Field(max_length=MAX_ID_CHARACTERS)] = ""


class SetRules(OfScope):
    rules: dict[str, Any]
    expected_version: Annotated[int | None, Field(ge=0, alias="expectedVersion")] = None


class DeleteRules(OfScope):
    expected_version: Annotated[int | None, Field(ge=0, alias="expectedVersion")] = None


class ExplainRules(OfConversation):
    agent: Name | None = None
    """The agent that a message of the generic webhook would name. If None, use the agent of the account."""


class ReadTuning(Request):
    weeks: Annotated[int, Field(ge=1, le=26)] = 4
    turns: bool = False


class MoveWaits(OfScope):
    cut_share: Annotated[float, Field(gt=0, lt=1, alias="cutShare")]
    """The goal: at most this share of the batches is cut."""


class ListDeadLetters(Request):
    replies: bool = False
    """List the dead letters of the stage's queues, whose consumers gave a batch up, instead of the buffer's."""
    limit: Annotated[int, Field(ge=1, le=MAX_LISTED)] = 50


class OfDeadLetter(Request):
    batch_id: Annotated[Name, Field(alias="batchId")]


class ShowDeadLetter(OfDeadLetter):
    payloads: bool = False
    """Show what people wrote."""


R = TypeVar("R", bound=Request)


def read_request(model: type[R], fields: dict[str, Any]) -> R:
    """Return the request. Raise InvalidInput, with a sentence for each problem."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise InvalidInput(" ".join(_sentences(model, error))) from error


def _sentences(model: type[Request], error: ValidationError) -> list[str]:
    valid = ", ".join(field.alias or name for name, field in model.model_fields.items())
    sentences = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        where = ".".join(map(str, problem["loc"]))
        match problem["type"]:
            case "missing":
                sentences.append(f"{where} is missing.")
            case "extra_forbidden":
                sentences.append(f"{where} is unknown here; valid: {valid}.")
            case _:
                sentences.append(f"{where}: {problem['msg'].removeprefix('Input ').removeprefix('Value error, ')}.")
    return sentences
