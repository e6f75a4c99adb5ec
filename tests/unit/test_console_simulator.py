"""What the simulator publishes to the pages when its customers write."""

import threading
from typing import Any
from unittest.mock import MagicMock

from tools.console.customers import Customer
from tools.console.place import Options, ShownStage
from tools.console.senders import SenderResponse
from tools.console.simulator import Simulator

CUSTOMER = Customer("generic", "shop", "1")


class Published:
    """Collects what a hub would send to the pages."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.has_both = threading.Event()

    def publish(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "buffer":
            self.counts.append(data["count"])
            if data["count"] == 2:
                self.has_both.set()


class FailsOnce:
    """Fails in an unforeseen way, and then says that two messages wait."""

    def __init__(self) -> None:
        self.has_failed = threading.Event()

    def ask(self, _operation: str, **_: Any) -> dict[str, Any]:
        if self.has_failed.is_set():
            return {"count": 2}
        self.has_failed.set()
        raise ValueError


class WritesAgain:
    """Answers with the number of messages so far. During the first answer, the customer writes again."""

    def __init__(self) -> None:
        self.simulator: Any = None
        self.counted = 0

    def ask(self, _operation: str, **_: Any) -> dict[str, Any]:
        self.counted += 1
        answer = {"count": self.counted}
        if self.counted == 1:
            self.simulator.act(CUSTOMER, "text", text="two")
        return answer


def simulator_of(published: Any, stage: Any) -> Simulator:
    place: Any = ShownStage(Options(stage="dev"))
    sender = MagicMock(kinds={"generic": ("text",)})
    sender.send.return_value = SenderResponse(
        200, {"conversations": {"default/generic/shop/1": {"dueAt": 1, "count": 1}}}
    )
    place._found = (0, MagicMock(), sender)
    unused: Any = MagicMock()
    return Simulator(place, published, stage=stage, polls=unused, time_lines=unused)


def test_an_unforeseen_failure_hides_one_buffer_only() -> None:
    """Reproduce a defect: after one such failure, no page saw a buffer any more."""
    published, stage = Published(), FailsOnce()
    simulator = simulator_of(published, stage)
    simulator.act(CUSTOMER, "text", text="one")
    assert stage.has_failed.wait(30)
    simulator.act(CUSTOMER, "text", text="two")
    assert published.has_both.wait(30)


def test_an_answer_from_before_the_newest_message_does_not_take_the_page_back() -> None:
    """Reproduce a defect: the due time on the page jumped back for a moment when a customer wrote quickly."""
    published, stage = Published(), WritesAgain()
    simulator = simulator_of(published, stage)
    stage.simulator = simulator
    simulator.act(CUSTOMER, "text", text="one")
    assert published.has_both.wait(30)
    assert published.counts == [2]
