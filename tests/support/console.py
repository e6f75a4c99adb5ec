"""Opens the console's page in a browser, on a local stage or on an imitated one."""

import json
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from bufferctl.errors import Unreachable
from message_buffer.json_object import Json
from tools.console.customers import PostedWebhook
from tools.console.place import Options, ShownStage
from tools.console.running import running
from tools.console.senders import SenderResponse

# Prints the lines of a file as they are added to it, as the console's listener prints events, until its input ends.
PRINT_LINES = """
import select, sys
print('{"problem": null}', flush=True)
with open(sys.argv[1]) as lines:
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        for line in lines:
            print(line, end="", flush=True)
"""


class ImitatedBus:
    """A bus on which a test publishes events."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._path = path
        self.listener = [sys.executable, "-c", PRINT_LINES, str(path)]

    def publish(self, kind: str, *, at_ms: int, **detail: Any) -> None:
        line = {"event": {"id": str(uuid.uuid4()), "detail-type": kind, "detail": detail}, "at": at_ms}
        with self._path.open("a") as lines:
            lines.write(json.dumps(line) + "\n")

    def publish_batch(
        self,
        conversation: str,
        *messages: Json,
        waits_ms: int,
        rule: str = "silenceMs",
        late_ms: int = 10,
        **detail: Any,
    ) -> None:
        """Publish a batch that was due `waits_ms` after its last message, and emitted `late_ms` later."""
        arrivals = [message["receivedAt"] for message in messages]
        first_at_ms, last_at_ms = min(arrivals), max(arrivals)
        emitted_at_ms = last_at_ms + waits_ms + late_ms
        times = {"firstMessageAt": first_at_ms, "lastMessageAt": last_at_ms, "rule": rule, "appliedWaitMs": waits_ms}
        self.publish(
            "messages.batch.ready",
            at_ms=emitted_at_ms,
            **{
                "conversationId": conversation, "batchId": f"b{last_at_ms}", "messageCount": len(messages),
                "bufferedAt": emitted_at_ms, "flushReason": "silence", "lane": "valkey", "attempt": 1,
                "generation": len(messages), "messages": list(messages),
                "metadata": {**times, "waitMs": last_at_ms + waits_ms - first_at_ms},
                **detail,
            },
        )  # fmt: skip


class ImitatedStage:
    """Answers the admin function's operations with what a test has set."""

    def __init__(self) -> None:
        self.problem = "AWS cannot be reached: the network is down"
        self.posted: list[PostedWebhook] = []
        self.rows: list[Json] = []
        self.letters: list[Json] = []
        self.counted: Mapping[str, Mapping[str, int]] = {}
        self.unknown: set[str] = set()
        self.is_away = False
        self.asked: list[tuple[str, Json]] = []

    def ask(self, operation: str, **fields: Any) -> Json:
        if self.is_away:
            raise Unreachable(self.problem)
        self.asked.append((operation, fields))
        match operation:
            case "status":
                counts = {"pending": len(self.rows), "inflight": 0, "nextDueAt": None, "overdueMs": 0}
                windows = {"open": 0, "nextDueAt": None, "overdueMs": 0}
                return {**counts, "shards": [], "windows": windows}
            case "conversation.list":
                return {"conversations": self.rows, "next": None, "more": False}
            case "dead.list":
                return {"letters": self.letters, "inQueue": len(self.letters)}
            case "tune.read":
                return {"scopes": self.counted}
            case "conversation.show":
                return self._shown(fields)
            case _:
                return {}

    def _shown(self, fields: Json) -> Json:
        row = next((each for each in self.rows if each["conversation"] == fields["conversation"]), None)
        shown = {
            "conversation": fields["conversation"], "known": fields["conversation"] not in self.unknown,
            "shard": 0, "state": "idle", "count": 0, "dueAt": None,
            "reason": None, "rule": None, "appliedWaitMs": None, "firstAt": None, "lastAt": None, "generation": 1,
            "heldUntil": None, "holds": [], "batch": None,
        } | (row or {})  # fmt: skip
        messages = [{"text": shown.pop("text"), "author": shown["author"]}] if "text" in shown else []
        return shown | ({"messages": messages} if fields.get("messages") else {})


class ImitatedPlace(ShownStage):
    """Leads to an imitated stage. Its bus is silent, unless the test gives it a listener."""

    def __init__(
        self,
        imitated: ImitatedStage,
        *,
        allow_changes: bool = False,
        show_words: bool = False,
        listener: Sequence[str] = ("cat",),
        sends: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        super().__init__(Options(stage="imitated", allow_changes=allow_changes, show_words=show_words))
        self._imitated = imitated
        self._listener = list(listener)
        self._sends = dict(sends or {})

    @property
    def stage(self) -> Any:
        return self._imitated

    @property
    def facts(self) -> Any:
        raise Unreachable("An imitated stage has no logs.")

    @property
    def sender(self) -> Any:
        return self

    @property
    def listener(self) -> list[str]:
        return self._listener

    @property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        return self._sends

    def send(self, _platform: str, posted: PostedWebhook) -> SenderResponse:
        self._imitated.posted.append(posted)
        return SenderResponse(200, {})


@contextmanager
def page_of(place: ShownStage, browser: Browser, **context: Any) -> Iterator[Page]:
    """Yield the console's page. Fail if it raised an error, violated its policy, or called another server."""
    with running(place) as address:
        page = browser.new_page(**{"locale": "en-US", "viewport": {"width": 1_400, "height": 900}, **context})
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(error.stack or str(error)))
        page.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: faults.extend([request.url] * (not request.url.startswith(address))))
        page.on("console", lambda line: faults.extend([line.text] * ("Content Security" in line.text)))
        page.goto(address)
        page.wait_for_selector("main")
        yield page
        page.close()
        assert not faults, "\n".join(faults)


def row(name: str, *, due_at_ms: int, **changed: Any) -> Json:
    return {
        "conversation": name, "lane": "valkey", "shard": 0, "state": "pending", "count": 2, "frozen": 0,
        "reason": "silence", "rule": "silenceMs", "appliedWaitMs": 1_000, "dueAt": due_at_ms,
        "author": "Ada", "text": "Hey", **changed,
    }  # fmt: skip
