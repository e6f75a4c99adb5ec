"""The request to a route and its response, independent of the gateway's formats, and functions that build refusals."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Literal, NamedTuple

from lambdas.ingest.platforms.base import Platform, Webhook, to_json

# A 429 asks the platform to wait until the quota allows messages again, but no longer than this, because a quota is
# full again after a minute.
MAX_RETRY_AFTER_SECONDS = 60


class WebhookCall(NamedTuple):
    """One call of a route. The path names the platform and, for the platform `custom`, the door."""

    platform: str
    webhook: Webhook
    route: Literal["webhook", "typing"] = "webhook"
    door: str | None = None


class Response(NamedTuple):
    """The response to the platform, in JSON unless the platform expects something else."""

    status: int
    body: str
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}
    unreadable: int = 0
    """The number of items that were left out because they cannot be read. It is not part of the response's body."""


def refuse(status: int, problem: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a refusal whose body is `{"error": problem}`."""
    return Response(status, to_json({"error": problem}), headers=headers or {})


def in_form_of(platform: Platform | None, response: Response) -> Response:
    """Return the response in the form that the platform expects. For some platforms, it has an empty body.

    The status is unchanged, because the platform shows it to its users, and calls another URL after some statuses.
    """
    if platform is None or platform.empty_response is None or response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return response
    body, content_type = platform.empty_response
    return response._replace(body=body, content_type=content_type)


def refuse_over_quota(wait_ms: int) -> Response:
    """Return the 429 for messages over a quota. The other messages are kept, and their redelivery is not charged."""
    seconds = min(max(-(-wait_ms // 1_000), 1), MAX_RETRY_AFTER_SECONDS)
    return refuse(429, "Over the quota; send it again later.", {"Retry-After": str(seconds)})
