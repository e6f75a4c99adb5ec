"""Opens the console's page in a browser, on a local stage or on an imitated one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page

from bufferctl.errors import Unreachable
from console.place import Options, Place
from console.running import running
from tests.support.local_stage import LocalStage

Json = dict[str, Any]


FIXED: dict[str, Json] = {
    "rules.list": {"rules": [], "more": False},
    "rules.explain": {"rules": {"silenceMs": {"value": 1_000, "layer": "defaults"}}, "skipped": []},
}


class ImitatedStage:
    """Answers the admin function's operations with what a test has set."""

    def __init__(self) -> None:
        self.rows: list[Json] = []
        self.letters: list[Json] = []
        self.refusals: Json | None = None
        self.is_away = False
        self.asked: list[tuple[str, Json]] = []

    def ask(self, operation: str, **fields: Any) -> Json:
        if self.is_away:
            raise Unreachable("AWS cannot be reached: the network is down")
        self.asked.append((operation, fields))
        match operation:
            case "status":
                counts = {"pending": len(self.rows), "inflight": 0, "nextDueAt": None, "overdueMs": 0}
                return {**counts, "shards": []} | ({"refusals": self.refusals} if self.refusals else {})
            case "conversation.list":
                return self._page(fields)
            case "dead.list":
                return {"letters": self.letters, "inQueue": len(self.letters)}
            case "conversation.show":
                return self._shown(fields)
            case _:
                return FIXED.get(operation, {})

    def _page(self, fields: Json) -> Json:
        begin = int(fields.get("cursor") or 0)
        end = begin + fields["limit"]
        more = end < len(self.rows)
        return {"conversations": self.rows[begin:end], "next": str(end) if more else None, "more": more}

    def _shown(self, fields: Json) -> Json:
        row = next((each for each in self.rows if each["conversation"] == fields["conversation"]), None)
        due_at_ms = row and row["dueAt"]
        shown = {
            "conversation": fields["conversation"], "state": row["state"] if row else "idle",
            "count": row["count"] if row else 0, "dueAt": due_at_ms, "reason": row and row["reason"],
            "firstAt": due_at_ms and due_at_ms - 1_000, "lastAt": due_at_ms and due_at_ms - 1_000, "generation": 1,
            "heldUntil": None, "batch": None,
        }  # fmt: skip
        messages = [{"receivedAt": 1, "author": row["author"], "text": row["text"]}] if row and "text" in row else []
        return shown | ({"messages": messages} if fields["messages"] else {})


class ImitatedPlace(Place):
    """Leads to an imitated stage. Its bus is silent, unless the test gives it a listener."""

    def __init__(
        self,
        imitated: ImitatedStage,
        *,
        allow_changes: bool = False,
        show_words: bool = False,
        listener: Sequence[str] = ("cat",),
    ) -> None:
        super().__init__(Options(stage="imitated", allow_changes=allow_changes, show_words=show_words))
        self._imitated = imitated
        self._listener = list(listener)

    @property
    def stage(self) -> Any:
        return self._imitated

    @property
    def sender(self) -> Any:
        return self

    @property
    def listener(self) -> list[str]:
        return self._listener

    @property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        return {}


def place_of(stage: LocalStage, *, allow_changes: bool = True, show_words: bool = True) -> Place:
    options = Options(outputs=stage.stage.outputs_file, allow_changes=allow_changes, show_words=show_words)
    return Place(options)


@contextmanager
def page_of(place: Place, browser: Browser, **context: Any) -> Iterator[Page]:
    """Yield the console's page. Fail if it raised an error, violated its policy, or called another server."""
    with running(place) as address:
        page = browser.new_page(locale="en-US", viewport={"width": 1_400, "height": 900}, **context)
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
        "reason": "silence", "dueAt": due_at_ms, "author": "Ada", "text": "Hey", **changed,
    }  # fmt: skip
