"""Write the table of what each platform sends into `docs/sending.md`: `python -m tests.support.platform_table`.

A platform has a "yes" in a row if one of its fixtures shows the row's feature.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lambdas.ingest.platforms import PLATFORMS
from lambdas.ingest.platforms.base import Incoming, Update
from message_buffer.json_object import Json
from message_buffer.messages.changes import Deleted, Edited, Failed, Reacted
from tests.support.webhook_cases import all_cases, read

DOCUMENT = Path(__file__).parents[2] / "docs/sending.md"
_PLACE = re.compile(r"(<!-- platforms: table -->\n).*?(<!-- end -->)", re.DOTALL)
ORDER = ("generic", "whatsapp", "messenger", "instagram", "twilio", "telegram")
Shows = Callable[[Update, Json], Any]
"""Returns a true value if an update has a feature. The second argument is its message, with the event's field names."""


def _field(*names: str) -> Shows:
    """Return a function that finds a message with this field. Several names are a path of nested fields."""

    def shows(_update: Update, message: Json) -> Any:
        found: Any = message
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        return found

    return shows


def _file(name: str) -> Shows:
    return lambda _update, message: any(each.get(name) for each in message.get("attachments", []))


def _typed(*types: str) -> Shows:
    """Return a function that finds a message or an attachment of one of these types."""
    return lambda _update, message: not {
        message.get("type"), *(each["type"] for each in message.get("attachments", []))
    }.isdisjoint(types)  # fmt: skip


ROWS: Mapping[str, tuple[str, Shows]] = {
    "edits": (
        "change a message that waits, or else become `messages.amended`",
        lambda update, _: isinstance(update, Edited),
    ),
    "deletions": ("as edits", lambda update, _: isinstance(update, Deleted)),
    "reactions": ("`messages.amended`", lambda update, _: isinstance(update, Reacted)),
    "failed deliveries": ("`messages.reply.failed`", lambda update, _: isinstance(update, Failed)),
    "replies": ("`replyTo`", _field("replyTo")),
    "the author of the quoted message": ("`quoted.author`", _field("quoted", "author")),
    "the quoted text": ("`quoted.text`", _field("quoted", "text")),
    "forwarded": ("`forwarded`", _field("forwarded")),
    "groups": ("a conversation, or one for each author", lambda update, _: getattr(update, "group", False)),
    "the group's title": ("`chat.title`", _field("chat", "title")),
    "the author's name": ("`profile.name`", _field("profile", "name")),
    "user name": ("`profile.userName`", _field("profile", "userName")),
    "id beside the number": ("`profile.userId`", _field("profile", "userId")),
    "language": ("`profile.language`", _field("profile", "language")),
    "country": ("`profile.country`", _field("profile", "country")),
    "the ad or link that led here": ("`referral`", _field("referral")),
    "the product asked about": ("`product`", _field("product")),
    "buttons and choices": ("`interactive`, and the label as `text`", _field("interactive")),
    "forms": ("`form`", _field("form")),
    "baskets": ("`order`, and the note as `text`", _field("order")),
    "payments": ("`payment`", _field("payment")),
    "why content is withheld": ("`withheld`", _field("withheld")),
    "addresses behind words": ("`links`", _field("links")),
    "albums": ("`groupId`", _field("groupId")),
    "places": ("an attachment", _file("latitude")),
    "contacts": ("an attachment each", _typed("contact")),
    "posts, reels, stories": ("an attachment", _typed("ig_post", "post", "ig_reel", "reel", "ig_story", "story")),
    "products, appointments": ("an attachment with `details`", _file("details")),
    "a file's hash": ("`sha256`", _file("sha256")),
    "a file's stable id": ("`stableId`", _file("stableId")),
    "a file's size": ("`sizeBytes`", _file("sizeBytes")),
    "a file's duration": ("`durationSeconds`", _file("durationSeconds")),
    "voice or music": ("`voice`", _file("voice")),
}  # fmt: skip


def table() -> str:
    """Return the table in Markdown."""
    shown: dict[str, set[str]] = {row: set() for row in ROWS}
    for case in all_cases():
        for update in read(case.platform, case.body).updates:
            message: Json = {}
            if isinstance(update, Incoming | Edited):
                message = update.message.model_dump(mode="json", by_alias=True, exclude_defaults=True)
            for row, (_, shows) in ROWS.items():
                if shows(update, message):
                    shown[row].add(case.platform)
    typing = {name for name, platform in PLATFORMS.items() if platform.reports_typing}
    lines = [
        "| | " + " | ".join(ORDER) + " | becomes |",
        "|---|" + "---|" * len(ORDER) + "---|",
        *(_line(row, shown[row], becomes) for row, (becomes, _) in ROWS.items()),
        _line("typing", typing, "a longer wait of open buffers"),
    ]
    return "\n".join(lines) + "\n"


def _line(row: str, platforms: set[str], becomes: str) -> str:
    return f"| {row} | " + " | ".join("yes" if each in platforms else "" for each in ORDER) + f" | {becomes} |"


def filled(document: str) -> str:
    return _PLACE.sub(lambda found: f"{found[1]}{table()}{found[2]}", document)


if __name__ == "__main__":
    DOCUMENT.write_text(filled(DOCUMENT.read_text("utf-8")), "utf-8")
