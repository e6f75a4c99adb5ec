"""A request of a route and its response, independent of the gateway's formats, and the refusals."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from lambdas.ingest.platforms.base import Webhook, to_json
from lambdas.limits import RETRY_AFTER_SECONDS


class Request(NamedTuple):
    """One call of a route: the platform is part of its path."""

    platform: str
    webhook: Webhook
    route: Literal["webhook", "typing"] = "webhook"


class Response(NamedTuple):
    """The answer to the platform, in JSON unless the platform expects something else."""

    status: int
    body: str
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}


def refuse(status: int, problem: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a refusal whose body is `{"error": problem}`."""
    return Response(status, to_json({"error": problem}), headers=headers or {})


def refuse_for_now() -> Response:
    """Return the 503 after which a platform sends the webhook again."""
    return refuse(503, "Not everything could be kept; send it again.", {"Retry-After": str(RETRY_AFTER_SECONDS)})
