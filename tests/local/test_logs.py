"""`make logs` shows the lines of a run in the order in which the function wrote them."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.local.test_stage import OUTPUTS
from tools.local import logs
from tools.local.outputs import Outputs

WRITTEN = ["START", "processor started", "buffered", "buffered", "END", "REPORT"]


class Logs:
    """A fake of CloudWatch Logs. It has the lines of one run, all with the same time, and those that a test adds."""

    def __init__(self) -> None:
        self.events = [{"timestamp": 1_000, "logStreamName": "s", "message": text} for text in WRITTEN]

    def get_paginator(self, operation: str) -> "Logs":
        assert operation == "filter_log_events"
        return self

    def paginate(self, *, logGroupName: str, startTime: int) -> list[dict[str, Any]]:  # noqa: N803 - AWS's names
        return [{"events": list(self.events)}]


def test_lines_of_a_run_come_in_their_order_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Logs()
    monkeypatch.setattr(Outputs, "client", lambda self, service: api)
    monkeypatch.setattr(logs, "LOGS_POLL_SECONDS", 0)
    following = logs.follow(replace(OUTPUTS, LogGroups={"ingest": "group"}), since_ms=0)
    assert [next(following).split(maxsplit=2)[2] for _ in WRITTEN] == WRITTEN
    # A second line of the same text and time is shown, and so is an earlier line that came late.
    api.events += [{"timestamp": 1_000, "logStreamName": "s", "message": "buffered"}]
    api.events.insert(0, {"timestamp": 900, "logStreamName": "s", "message": "late"})
    assert [next(following).split(maxsplit=2)[2] for _ in range(2)] == ["late", "buffered"]


def test_only_the_lines_about_one_conversation_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    api, ours = Logs(), "default/generic/shop/ü"
    of_another, of_ours = (json.dumps({"message": "buffered", "conversations": [each]}) for each in (f"{ours}2", ours))
    for text in (of_another, of_ours, "END", of_ours):
        api.events.append({"timestamp": 1_000, "logStreamName": "s", "message": text})
    monkeypatch.setattr(Outputs, "client", lambda self, service: api)
    following = logs.follow(replace(OUTPUTS, LogGroups={"ingest": "group"}), since_ms=0, about=ours)
    assert [next(following).split(maxsplit=2)[2] for _ in range(2)] == [of_ours, of_ours]
