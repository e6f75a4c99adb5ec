"""The table `Tuning`: for each scope and week the sums of `Counts`, whose form `curve.py` describes.

A scope is `tenant/platform/agent`, each part escaped like those of a conversation's id. The agent's part is empty if
the batch names none. The scope `*` has the sums of the whole stage.
"""

from collections import Counter
from datetime import UTC, datetime

from message_buffer.aws.dynamodb import Item, Table, Values, expressions, number, text
from message_buffer.limits import DAY_MS, SECOND_MS
from message_buffer.tuning.curve import Counts

STAGE = "*"
# The scopes of what `cells.py` counts in the whole stage: a half of the conversations each.
CELLS = ("*cells0", "*cells1")
# A week's counts expire this long after they were last written.
COUNTS_KEPT_MS = 26 * 7 * DAY_MS


class TuningTable(Table):
    def add(self, scope: str, counts: Counts, *, now_ms: int) -> Counts:
        """Add the counts to those of this week. Return the sums."""
        values: Values = {**counts, "expires": (now_ms + COUNTS_KEPT_MS) // SECOND_MS}
        do = f"SET #expires_at = :expires ADD {', '.join(f'#{name} :{name}' for name in counts)}"
        key = {"scope": scope, "week": week_of(now_ms)}
        updated = self._update("add counts", key, do, values, returns="ALL_NEW")
        return _counts(updated.item)

    def sums(self, *, since_ms: int) -> dict[str, Counter[str]]:
        """Return the sums by scope of the week of this time and of all later ones."""
        found: dict[str, Counter[str]] = {}
        recent = expressions({"week": week_of(since_ms)}, FilterExpression="#week >= :week")
        for item in self._pages("read counts", "scan", recent):
            found.setdefault(text(item, "scope"), Counter()).update(_counts(item))
        return found


def week_of(now_ms: int) -> str:
    """Return the ISO week in UTC, such as `2026-W47`."""
    year, week, _ = datetime.fromtimestamp(now_ms // SECOND_MS, UTC).isocalendar()
    return f"{year}-W{week:02}"


def _counts(item: Item) -> Counts:
    return {name: number(item, name) for name in item.keys() - {"scope", "week", "expires_at"}}
