"""Reads facts about a stage from its AWS account. It reads each fact only once, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any, NamedTuple

from bufferctl.errors import needs_sign_in
from bufferctl.stage import LOCAL, Client
from message_buffer.clock import Clock, system_clock
from message_buffer.json_object import Json

MAX_LOG_PAGES = 20
LOOK_BACK_MINUTES = 60

STACKS = ("Network", "Cache", "PublicCache", "Buffer", "Responder")
# The codes with which services refuse a caller who lacks a permission.
DENIED = {
    "AccessDenied",
    "AccessDeniedException",
    "AuthorizationError",
    "AuthorizationErrorException",
    "NotAuthorized",
    "UnauthorizedOperation",
}


# The name of a metric, and its dimensions.
Metric = tuple[str, Mapping[str, str]]


class Unreadable(Exception):
    """Raised if something cannot be read. The exception's text says what, and why."""


class Resource(NamedTuple):
    stack: str
    logical_id: str
    type: str
    id: str
    properties: Json
    """The properties as the template has them, with unresolved intrinsic functions."""


@dataclass(frozen=True)
class LogLine:
    at_ms: int
    text: str

    @property
    def fields(self) -> Json:
        """Return the line's fields, or an empty object if Lambda itself wrote the line."""
        try:
            parsed = json.loads(self.text)
        except ValueError:
            return {}
        return parsed if isinstance(parsed, dict) else {}


class Count(NamedTuple):
    """The total of a metric in the last hour, and the beginning of the last minute in which it was not zero."""

    total: float
    last_at_ms: int


class StageFacts:
    def __init__(
        self,
        name: str,
        client: Client,
        *,
        api_endpoint: str | None = None,
        aws_cli: str = "aws",
        clock: Clock = system_clock,
    ) -> None:
        """Read about the stage `name`. If `api_endpoint` is given, use it instead of the stack's output.

        `aws_cli` is the beginning of AWS CLI commands for this stage, such as `aws --region us-east-1`.
        """
        self.name = name
        self.aws_cli = aws_cli
        self._client = client
        self._api_endpoint = api_endpoint
        self._clock = clock

    @property
    def is_local(self) -> bool:
        return self.name == LOCAL

    def read(self, service: str, operation: str, **arguments: Any) -> Json:
        """Return a response of AWS. Raise Unreadable if the caller lacks the permission, or if AWS does not answer.

        Raise the SDK's error if the caller must sign in first, because then nothing else can be read either.
        """
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - it would make --help slow

        method = "".join(word.capitalize() for word in operation.split("_"))
        try:
            response: Json = getattr(self._client(service), operation)(**arguments)
        except ClientError as error:
            if error.response["Error"]["Code"] in DENIED:
                raise Unreadable(f"{service}:{method}: these credentials lack the permission") from error
            raise
        except BotoCoreError as error:
            if needs_sign_in(error):
                raise
            raise Unreadable(f"{service}:{method}: {error}") from error
        return response

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
        """Yield the items of all pages of a response."""
        token: Json = {}
        while True:
            response = self.read(service, operation, **arguments, **token)
            yield from response.get(key, [])
            if not response.get("NextToken"):
                return
            token = {"NextToken": response["NextToken"]}

    # -- stacks ------------------------------------------------------------------------------------

    @cached_property
    def stacks(self) -> Mapping[str, Json]:
        """Return the stacks that exist, by the last word of their names."""
        from botocore.exceptions import ClientError  # noqa: PLC0415 - it would make --help slow

        found = {}
        for last in STACKS:
            try:
                response = self.read("cloudformation", "describe_stacks", StackName=f"MessageBuffer-{self.name}-{last}")
            except ClientError as error:
                # CloudFormation returns this code for a stack that does not exist.
                if error.response["Error"]["Code"] != "ValidationError":
                    raise
                continue
            found[last] = response["Stacks"][0]
            if date := response["ResponseMetadata"]["HTTPHeaders"].get("date"):
                self._skew_seconds = self._clock() / 1_000 - parsedate_to_datetime(date).timestamp()
        return found

    @property
    def skew_seconds(self) -> float:
        """Return how far this machine's clock is ahead of AWS's, to about a second, because AWS sends whole seconds."""
        if not self.stacks or self._skew_seconds is None:
            raise Unreadable("the clock: no response of AWS contained the time")
        return self._skew_seconds

    _skew_seconds: float | None = None

    @cached_property
    def outputs(self) -> Mapping[str, str]:
        found = [each for stack in self.stacks.values() for each in stack.get("Outputs", [])]
        return {each["OutputKey"]: each["OutputValue"] for each in found}

    @property
    def api_endpoint(self) -> str | None:
        return self._api_endpoint or self.outputs.get("ApiEndpoint")

    @property
    def age_days(self) -> float:
        """Return how long ago the stage was deployed for the first time."""
        created: datetime = self.stacks["Buffer"]["CreationTime"]
        return (self._clock() / 1_000 - created.timestamp()) / 86_400

    def minutes_since(self, at_ms: int) -> float:
        return (self._clock() - at_ms) / 60_000

    def days_until(self, moment: datetime) -> int:
        return int((moment.timestamp() - self._clock() / 1_000) // 86_400)

    @cached_property
    def functions(self) -> Mapping[str, str]:
        """Return the names of the functions by role."""
        return {
            _role(output.removesuffix("Function")): value
            for output, value in self.outputs.items()
            if output.endswith("Function")
        }

    @cached_property
    def resources(self) -> Sequence[Resource]:
        """Return the resources of the stacks that contain functions."""
        found = []
        for last in ("Buffer", "Responder"):
            if last not in self.stacks:
                continue
            name = f"MessageBuffer-{self.name}-{last}"
            body = self.read("cloudformation", "get_template", StackName=name)["TemplateBody"]
            template = (json.loads(body) if isinstance(body, str) else body)["Resources"]
            for each in self.pages("cloudformation", "list_stack_resources", "StackResourceSummaries", StackName=name):
                logical_id = each["LogicalResourceId"]
                properties = template.get(logical_id, {}).get("Properties", {})
                found.append(
                    Resource(last, logical_id, each["ResourceType"], each.get("PhysicalResourceId", ""), properties)
                )
        return found

    def of_type(self, kind: str) -> list[Resource]:
        return [each for each in self.resources if each.type == kind]

    # -- metrics and logs --------------------------------------------------------------------------

    def counts(self, namespace: str, metrics: Sequence[Metric]) -> list[Count | None]:
        """Return the count of each metric over the last hour, or None for a metric that was zero."""
        found = self._metric_data(namespace, metrics, seconds=60 * LOOK_BACK_MINUTES, period=60, stat="Sum")
        return [
            Count(sum(by_time.values()), max(at_ms for at_ms, value in by_time.items() if value))
            if any(by_time.values())
            else None
            for by_time in found
        ]

    def maximum(self, namespace: str, metric: Metric, *, hours: int) -> float:
        seconds = 3_600 * hours
        (by_time,) = self._metric_data(namespace, [metric], seconds=seconds, period=seconds, stat="Maximum")
        return max(by_time.values(), default=0.0)

    def _metric_data(
        self, namespace: str, metrics: Sequence[Metric], *, seconds: int, period: int, stat: str
    ) -> list[dict[int, float]]:
        """Return each metric's statistic for every period. Each key is the time in ms at which a period begins."""
        queries = [
            {
                "Id": f"m{place}",
                "MetricStat": {
                    "Metric": {
                        "Namespace": namespace,
                        "MetricName": name,
                        "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions.items()],
                    },
                    "Period": period,
                    "Stat": stat,
                },
            }
            for place, (name, dimensions) in enumerate(metrics)
        ]
        end = datetime.fromtimestamp(self._clock() / 1_000, UTC)
        response = self.read(
            "cloudwatch", "get_metric_data", MetricDataQueries=queries,
            StartTime=end - timedelta(seconds=seconds), EndTime=end,
        )  # fmt: skip
        by_id = {
            each["Id"]: {
                int(moment.timestamp() * 1_000): float(value)
                for moment, value in zip(each["Timestamps"], each["Values"], strict=True)
            }
            for each in response["MetricDataResults"]
        }
        return [by_id.get(f"m{place}", {}) for place in range(len(metrics))]

    def log_lines(self, role: str, pattern: str, *, minutes: float) -> list[LogLine]:
        """Return a function's log lines of the last `minutes` that match a pattern of CloudWatch, the newest last.

        The emulator matches less exactly than CloudWatch, so the caller must filter again. Raise Unreadable if there
        are too many lines to read.
        """
        group = self.outputs.get(f"{_camel(role)}LogGroup")
        if group is None:
            return []
        arguments: Json = {
            "logGroupName": group,
            "startTime": int(self._clock() - minutes * 60_000),
            "filterPattern": pattern,
        }
        lines: list[LogLine] = []
        for _ in range(MAX_LOG_PAGES):
            response = self.read("logs", "filter_log_events", **arguments)
            lines += [LogLine(each["timestamp"], each["message"].rstrip()) for each in response["events"]]
            if not response.get("nextToken"):
                return sorted(lines, key=lambda line: line.at_ms)
            arguments["nextToken"] = response["nextToken"]
        if not lines:
            raise Unreadable(f"the logs of {role.replace('_', ' ')}: too many lines")
        return sorted(lines, key=lambda line: line.at_ms)

    def said(self, role: str, *messages: str, minutes: float) -> list[Json]:
        """Return the fields of a function's own log lines with these messages, and each line's time as `atMs`."""
        any_of = " || ".join(f'($.message = "{message}")' for message in messages)
        pattern = f'"{messages[0]}"' if len(messages) == 1 else f"{{ {any_of} }}"
        lines = self.log_lines(role, pattern, minutes=minutes)
        return [line.fields | {"atMs": line.at_ms} for line in lines if line.fields.get("message") in messages]


def _camel(role: str) -> str:
    return "".join(word.capitalize() for word in role.split("_"))


def _role(camel: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in camel).removeprefix("_")
