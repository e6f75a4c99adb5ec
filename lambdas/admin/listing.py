"""Lists the conversations that have messages, first shard by shard, and then those with an open window in DynamoDB."""

import re
from typing import NamedTuple

from lambdas.admin.reply_windows import reply_until
from lambdas.admin.requests import ListConversations
from message_buffer.errors import InvalidInput
from message_buffer.json_object import Json
from message_buffer.lanes.dynamodb.lane import DynamoDbLane
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.lanes.valkey.store import FIRST_PAGE
from message_buffer.messages.conversation_id import escape_part

# A page is small, because the script that reads it blocks Valkey.
MAX_CONVERSATIONS_IN_A_PAGE = 500
# The index of open windows has no cursor for operators, so a listing has only the 5,000 most overdue windows.
MAX_WINDOWS_IN_A_LISTING = 5_000
# If a filter matches few conversations, a call returns after this many pages, with a cursor, before its time-out.
MAX_PAGES_IN_A_LISTING = 200
# The cursor of the page of open windows. The cursor of a shard's page is `<shard>/<the store's cursor>`.
WINDOWS = "windows"
_SHARD_CURSOR = re.compile(r"([0-9]{1,5})/((?:open|inflight|pending):[0-9]{1,20})")


class _WindowPage(NamedTuple):
    names: list[str]
    next_cursor: str | None
    more: bool = False
    """True if windows were left out. No later call returns these windows."""


def list_conversations(
    request: ListConversations, valkey_lane: ValkeyLane | None, dynamodb_lane: DynamoDbLane | None
) -> Json:
    """Return a page of `conversations` with their state.

    `next` is the cursor of the next page, or None. `more` is True if the page does not show all conversations.

    The list may be longer than `limit`, because the last page of a shard is returned whole. It may be shorter if many
    pages had few matches. Raise InvalidInput if the request names a shard that the stage does not have, or a cursor
    that no earlier call returned.
    """
    found: dict[tuple[str, str], Json] = {}
    cursor, next_cursor, more = request.cursor or _first_cursor(request, valkey_lane), None, False
    for _ in range(MAX_PAGES_IN_A_LISTING):
        lane: ValkeyLane | DynamoDbLane
        if cursor == WINDOWS and dynamodb_lane:
            lane, kind = dynamodb_lane, "dynamodb"
            page = _windows(dynamodb_lane, request, room=request.limit - len(found))
        elif valkey_lane:
            lane, kind = valkey_lane, "valkey"
            page = _page_of_shard(valkey_lane, cursor, request, then=WINDOWS if dynamodb_lane else None)
        else:
            raise InvalidInput(f"cursor: no earlier call returned {cursor!r}; leave it out to begin again")
        next_cursor, more = page.next_cursor, page.more
        for name in page.names:
            if row := _row(lane, kind, name):
                found[kind, name] = row
        if next_cursor is None or len(found) >= request.limit:
            break
        cursor = next_cursor
    return {"conversations": list(found.values()), "next": next_cursor, "more": more or next_cursor is not None}


def _first_cursor(request: ListConversations, valkey_lane: ValkeyLane | None) -> str:
    if request.shard is None:
        return f"0/{FIRST_PAGE}" if valkey_lane else WINDOWS
    if valkey_lane is None:
        raise InvalidInput("shard: this stage has no shards, since it has no Valkey lane; leave it out")
    return f"{request.shard}/{FIRST_PAGE}"


def _page_of_shard(
    valkey_lane: ValkeyLane, cursor: str, request: ListConversations, *, then: str | None
) -> _WindowPage:
    given = _SHARD_CURSOR.fullmatch(cursor)
    if not given:
        raise InvalidInput(f"cursor: no earlier call returned {cursor!r}; leave it out to begin again")
    shard, shards = int(given[1]), valkey_lane.settings.shards
    if shard >= shards:
        raise InvalidInput(f"shard: this stage has the shards 0 to {shards - 1}, not {shard}")
    page = valkey_lane.list_conversations(shard, cursor=given[2], limit=MAX_CONVERSATIONS_IN_A_PAGE)
    names = [each.conversation for each in page.conversations if _matches(each.conversation, request)]
    if page.next_cursor:
        return _WindowPage(names, f"{shard}/{page.next_cursor}")
    if request.shard is not None:
        return _WindowPage(names, None)
    return _WindowPage(names, f"{shard + 1}/{FIRST_PAGE}" if shard + 1 < shards else then)


def _windows(dynamodb_lane: DynamoDbLane, request: ListConversations, *, room: int) -> _WindowPage:
    opened = dynamodb_lane.open_windows(limit=MAX_WINDOWS_IN_A_LISTING)
    names = [name for name, _ in opened if _matches(name, request)]
    return _WindowPage(names[:room], None, more=len(names) > room or len(opened) >= MAX_WINDOWS_IN_A_LISTING)


def _matches(name: str, request: ListConversations) -> bool:
    parts = name.split("/")
    wanted = (request.tenant, request.platform)
    return all(each is None or part == escape_part(each) for part, each in zip(parts, wanted, strict=False))


def _row(lane: ValkeyLane | DynamoDbLane, kind: str, name: str) -> Json | None:
    """Return the conversation's state, or None if its batch was completed after the page was read."""
    seen = lane.peek_conversation(name)
    if seen.state == "IDLE":
        return None
    return {
        "conversation": name,
        "lane": kind,
        "shard": lane.shard_of(name) if isinstance(lane, ValkeyLane) else None,
        "state": seen.state.lower(),
        "count": seen.count,
        "frozen": seen.frozen,
        "reason": seen.flush_reason,
        "rule": seen.rule,
        "appliedWaitMs": seen.applied_wait_ms,
        "dueAt": seen.due_at_ms,
        **reply_until(name, seen),
    }
