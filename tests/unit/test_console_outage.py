"""In an outage of Valkey the page gets one plain sentence, not the error of each call."""

from typing import Any

import pytest
from redis.exceptions import ConnectionError as NoConnection

from bufferctl.errors import Failed, Unreachable
from message_buffer.lanes.valkey.connection import as_store_error
from tools.console.outage import in_words, is_outage
from tools.console.polls import Polls
from tools.console.time_lines import TimeLines

BOTH_LANES = {"windows": {"open": 0}}


def out() -> Unreachable:
    """Return what the console gets if Valkey refuses connections."""
    return Unreachable(str(as_store_error(NoConnection("Error 111 connecting to 127.0.0.1:6379"), "recover_expired")))


@pytest.mark.parametrize("status", [None, BOTH_LANES])
def test_with_a_fallback_the_sentence_says_that_messages_are_safe_and_what_may_change(status: Any) -> None:
    said = in_words(out(), status=status)
    for part in ("safe", "DynamoDB", "separate batches", "when it answers again"):
        assert part in said
    assert "111" not in said


def test_without_a_fallback_the_sentence_says_that_messages_are_refused() -> None:
    said = in_words(out(), status={"shards": []})
    assert "refuses new messages" in said
    assert "safe" not in said


@pytest.mark.parametrize("error", [Unreachable("AWS cannot be reached: no route"), Failed("Valkey cannot be reached")])
def test_other_errors_are_shown_as_they_are(error: Failed) -> None:
    assert in_words(error, status=None) == str(error)
    assert not is_outage(error)


class Away:
    def poll(self, *_args: Any, **_fields: Any) -> Any:
        raise out()


class Hub:
    """Ends the polls after the first state."""

    def __init__(self) -> None:
        self.polls: Polls | None = None
        self.states: list[Any] = []

    def wait_for_a_reader(self, **_given: Any) -> bool:
        return True

    def publish(self, _kind: str, state: Any) -> None:
        assert self.polls
        self.states.append(state)
        self.polls.end()


def test_the_state_has_the_sentence_once() -> None:
    hub: Any = Hub()
    stage: Any = Away()
    hub.polls = Polls(stage, hub, TimeLines())
    hub.polls.run()
    (state,) = hub.states
    assert state["isOutage"]
    assert state["problem"].count("Valkey does not answer") == 1
