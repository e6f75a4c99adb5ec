"""What the simulator publishes to the pages when its customers write."""

import threading
from typing import Any
from unittest.mock import MagicMock

from console.customers import Customer
from console.place import Options, Place
from console.senders import Answer
from console.simulator import Simulator

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


class WritesAgain:
    """Answers with the number of messages so far. During the first answer, the customer writes again."""

    def __init__(self) -> None:
        self.simulator: Any = None
        self.counted = 0

    def show(self, _conversation: str, **_: Any) -> dict[str, Any]:
        self.counted += 1
        answer = {"count": self.counted, "why": {"text": "because"}}
        if self.counted == 1:
            self.simulator.act(CUSTOMER, "text", text="two")
        return answer


def test_an_answer_from_before_the_newest_message_does_not_take_the_page_back() -> None:
    """Reproduce a defect: the due time on the page jumped back for a moment when a customer wrote quickly."""
    place: Any = Place(Options(stage="dev"))
    sender = MagicMock(kinds={"generic": ("text",)})
    sender.send.return_value = Answer(200, {"conversations": {"default/generic/shop/1": {"dueAt": 1, "count": 1}}})
    place._found = (0, MagicMock(), sender)
    published: Any = Published()
    explained: Any = WritesAgain()
    unused: Any = MagicMock()
    simulator = Simulator(place, published, explained=explained, looks=unused, time_lines=unused)
    explained.simulator = simulator
    simulator.act(CUSTOMER, "text", text="one")
    assert published.has_both.wait(30)
    assert published.counts == [2]
