"""The table `Tuning`: for each scope and week the sums of `Counts`, whose form `curve.py` describes.

A scope is `tenant/platform/agent`, each part escaped like those of a conversation's id. The agent's part is empty if
the batch names none. The scope `*` has the sums of the whole stage, and `*turns` a sample of its turns of each hour.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from message_buffer.aws.dynamodb import Item, Table, Values, expressions, number, text
from message_buffer.limits import DAY_MS, HOUR_MS, SECOND_MS
from message_buffer.tuning.curve import Counts

STAGE = "*"
TURNS = "*turns"
# A response of Lambda has room for this many turns.
MAX_TURNS_READ = 20_000
IN_SCOPE, OTHER_SCOPES = "#scope = :scope AND #week >= :week", "#week >= :week AND #scope <> :turns"
# A week's counts expire this long after they were last written, and turns this long after their hour.
COUNTS_KEPT_MS, TURNS_KEPT_MS = 26 * 7 * DAY_MS, 4 * 7 * DAY_MS


class TuningTable(Table):
    def add(self, scope: str, counts: Counts, *, now_ms: int) -> Counts:
        """Add the counts to those of this week. Return the sums."""
        values: Values = {**counts, "expires": (now_ms + COUNTS_KEPT_MS) // SECOND_MS}
        do = f"SET #expires_at = :expires ADD {', '.join(f'#{name} :{name}' for name in counts)}"
        key = {"scope": scope, "week": week_of(now_ms)}
        updated = self._update("add counts", key, do, values, returns="ALL_NEW")
        return _counts(updated.item)

    def keep_turns(self, turns: Sequence[str], *, hour: int) -> None:
        """Store a sample of the turns of an hour, unless another instance has stored a larger one."""
        key = {"scope": TURNS, "week": f"{week_of(hour * HOUR_MS)}.{hour:07}"}
        expires = (hour * HOUR_MS + TURNS_KEPT_MS) // SECOND_MS
        values: Values = {"turns": "\n".join(turns), "number": len(turns), "expires": expires}
        do = "SET #turns = :turns, #number = :number, #expires_at = :expires"
        only_if = "attribute_not_exists(#number) OR #number < :number"
        self._update("keep turns", key, do, values, only_if=only_if)

    def turns(self, *, since_ms: int) -> list[str]:
        """Return the newest turns since the week of this time."""
        named = expressions({"scope": TURNS, "week": week_of(since_ms)}, KeyConditionExpression=IN_SCOPE)
        found: list[str] = []
        for item in self._pages("read turns", "query", {"ScanIndexForward": False, **named}):
            found += text(item, "turns").split("\n")
            if len(found) >= MAX_TURNS_READ:
                break
        return found

    def sums(self, *, since_ms: int) -> dict[str, Counter[str]]:
        """Return the sums by scope of the week of this time and of all later ones."""
        found: dict[str, Counter[str]] = {}
        recent = expressions({"week": week_of(since_ms), "turns": TURNS}, FilterExpression=OTHER_SCOPES)
        for item in self._pages("read counts", "scan", recent):
            found.setdefault(text(item, "scope"), Counter()).update(_counts(item))
        return found


def week_of(now_ms: int) -> str:
    """Return the ISO week in UTC, such as `2026-W47`."""
    year, week, _ = datetime.fromtimestamp(now_ms // SECOND_MS, UTC).isocalendar()
    return f"{year}-W{week:02}"


def _counts(item: Item) -> Counts:
    return {name: number(item, name) for name in item.keys() - {"scope", "week", "expires_at"}}
