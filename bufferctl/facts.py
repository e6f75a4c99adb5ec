"""Reads facts about a stage from its AWS account. It changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

from bufferctl.stage import LOCAL, Client
from message_buffer.clock import Clock, system_clock
from message_buffer.json_object import Json

MAX_LOG_PAGES = 20
LOOK_BACK_MINUTES = 60
HOUR_SECONDS = 3_600

STACKS = ("Network", "Cache", "PublicCache", "Buffer", "Responder")
# The name of a metric, and its dimensions.
NamedMetric = tuple[str, Mapping[str, str]]


class Unreadable(Exception):
    """Raised if something cannot be read. The exception's text says what, and why."""


class LogLine(NamedTuple):
    at_ms: int
    text: str
    fields: Json
    """Empty if Lambda itself wrote the line."""
    role: str = ""
    stream: str = ""


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
        response: Json = getattr(self._client(service), operation)(**arguments)
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
        return found

    @cached_property
    def outputs(self) -> Mapping[str, str]:
        found = [each for stack in self.stacks.values() for each in stack.get("Outputs", [])]
        return {each["OutputKey"]: each["OutputValue"] for each in found}

    @property
    def api_endpoint(self) -> str | None:
        return self._api_endpoint or self.outputs.get("ApiEndpoint")

    @property
    def age_minutes(self) -> float:
        """Return how long ago the stage was deployed for the first time."""
        created: datetime = self.stacks["Buffer"]["CreationTime"]
        return self.minutes_since(created.timestamp() * 1_000)

    @property
    def now_ms(self) -> int:
        return self._clock()

    def minutes_since(self, at_ms: float) -> float:
        return (self._clock() - at_ms) / 60_000

    @cached_property
    def functions(self) -> Mapping[str, str]:
        """Return the names of the functions by role."""
        return {
            _role(output.removesuffix("Function")): value
            for output, value in self.outputs.items()
            if output.endswith("Function")
        }

    def totals(self, namespace: str, metrics: Sequence[NamedMetric]) -> list[float]:
        """Return the sum of each metric over the last hour."""
        queries = [
            {
                "Id": f"m{place}",
                "MetricStat": {
                    "Metric": {
                        "Namespace": namespace,
                        "MetricName": name,
                        "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions.items()],
                    },
                    "Period": HOUR_SECONDS,
                    "Stat": "Sum",
                },
            }
            for place, (name, dimensions) in enumerate(metrics)
        ]
        end = datetime.fromtimestamp(self._clock() / 1_000, UTC)
        start = end - timedelta(seconds=HOUR_SECONDS)
        response = self.read("cloudwatch", "get_metric_data", MetricDataQueries=queries, StartTime=start, EndTime=end)
        by_id = {each["Id"]: sum(each["Values"]) for each in response["MetricDataResults"]}
        return [by_id.get(f"m{place}", 0) for place in range(len(metrics))]

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
            lines += [_parsed(role, each) for each in response["events"]]
            if not response.get("nextToken"):
                break
            arguments["nextToken"] = response["nextToken"]
        else:
            if not lines:
                raise Unreadable(f"the logs of {role.replace('_', ' ')}: too many lines")
        return sorted(lines, key=lambda line: line.at_ms)

    def logs_info(self, role: str) -> bool:
        """Return whether the function logs lines of level INFO, which is the default."""
        found = self.read("lambda", "get_function_configuration", FunctionName=self.functions[role])
        settings: Json = json.loads(found.get("Environment", {}).get("Variables", {}).get("SETTINGS", "{}"))
        return settings.get("log", {}).get("level") in ("INFO", None)

    def said(self, role: str, *messages: str, minutes: float) -> list[Json]:
        """Return the fields of a function's own log lines with these messages, and each line's time as `atMs`."""
        return [line.fields | {"atMs": line.at_ms} for line in self.lines_saying(role, *messages, minutes=minutes)]

    def lines_saying(self, role: str, *messages: str, minutes: float) -> list[LogLine]:
        any_of = " || ".join(f'($.message = "{message}")' for message in messages)
        pattern = f'"{messages[0]}"' if len(messages) == 1 else f"{{ {any_of} }}"
        lines = self.log_lines(role, pattern, minutes=minutes)
        return [line for line in lines if line.fields.get("message") in messages]


def _parsed(role: str, event: Json) -> LogLine:
    text = event["message"].rstrip()
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    fields = fields if isinstance(fields, dict) else {}
    at_ms = event["timestamp"]
    with suppress(KeyError, TypeError, ValueError):
        # The emulator gives all lines of a run the time of the run's end.
        at_ms = int(datetime.fromisoformat(fields["timestamp"]).timestamp() * 1_000)
    return LogLine(at_ms, text, fields, role, event.get("logStreamName", ""))


def _camel(role: str) -> str:
    return "".join(word.capitalize() for word in role.split("_"))


def _role(camel: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in camel).removeprefix("_")
