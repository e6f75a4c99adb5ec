"""Short webhooks, one a line in `fixtures/webhooks`, each with the updates that its platform's reader must return.

A case contains only the fields that it tests. This module fills in the rest of the body, and removes the usual values
from the updates before they are compared. A null in a case removes a field that would be filled in.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lambdas.ingest.platforms import PLATFORMS
from lambdas.ingest.platforms.base import Intake, Signer
from message_buffer.json_object import Json
from tests.support.platforms import OBJECTS, RECEIVED_AT_MS, body_of, described, fixtures, webhook

CASES = Path(__file__).parents[1] / "fixtures" / "webhooks"
SENT_AT = 1_690_000_000
ACCOUNTS = {
    "generic": "shop",
    "whatsapp": "555",
    "messenger": "682",
    "instagram": "178",
    "twilio": "15558675310",
    "telegram": "shopbot",
}
AUTHORS = {
    "generic": "c1",
    "whatsapp": "491",
    "messenger": "7700",
    "instagram": "7700",
    "twilio": "+1401",
    "telegram": "1111",
}
CHAT, WRITER = {"id": 1111, "type": "private"}, {"id": 1111, "is_bot": False, "first_name": "Ada"}
ONE_MESSAGE: dict[str, Json] = {
    "message": {"message_id": 5, "from": WRITER, "chat": CHAT, "date": SENT_AT},
    "callback_query": {"id": "77", "from": WRITER, "message": {"message_id": 4, "chat": CHAT, "date": SENT_AT}},
    "poll_answer": {"poll_id": "9", "user": WRITER},
    "message_reaction": {"chat": CHAT, "message_id": 5, "user": WRITER, "date": SENT_AT},
    "deleted_business_messages": {"chat": CHAT},
}
IDS = {
    "generic": "m1",
    "whatsapp": "wamid.1",
    "messenger": "m_1",
    "instagram": "m_1",
    "twilio": "SM1",
    "telegram": "5",
}


class Case(NamedTuple):
    kind: str
    name: str
    platform: str
    content: Json
    expected: Json

    @property
    def body(self) -> Any:
        return whole(self.platform, self.content)

    def __str__(self) -> str:
        return f"{self.kind}/{self.platform} {self.name}"


def cases() -> Iterator[Case]:
    for path in sorted(CASES.glob("*.json")):
        for case in json.loads(path.read_text("utf-8")):
            yield Case(path.stem, case["name"], case["platform"], case["content"], case["expected"])


def all_cases() -> list[Case]:
    """Return the short webhooks and those of `fixtures/platforms`, whose expected updates are in files of their own."""
    long = (
        Case("long", path.stem, path.parent.name, {"body": json.loads(path.read_text("utf-8"))}, {})
        for path in fixtures()
    )
    return [*cases(), *long]


def read(platform: str, body: Any) -> Intake:
    signer = Signer(frozenset({"shopbot"})) if platform == "telegram" else Signer(all_but=frozenset())
    sent = webhook(platform, body_of(platform, body))
    return PLATFORMS[platform].read(sent, signer=signer, received_at_ms=RECEIVED_AT_MS)


def told(platform: str, intake: Intake) -> Json:
    """Return the updates and ignored items that were read, without the fields that have their usual values."""
    all_of_it = described(intake)
    return {
        "updates": [_shortened(platform, update) for update in all_of_it["updates"]],
        **({"ignored": all_of_it["ignored"]} if all_of_it["ignored"] else {}),
        **({"replies": all_of_it["replies"]} if "replies" in all_of_it else {}),
    }


def _shortened(platform: str, update: Json) -> Json:
    usual = {
        "update": "Incoming",
        "conversation": f"default/{platform}/{ACCOUNTS[platform]}/{AUTHORS[platform].removeprefix('+')}",
        "author": AUTHORS[platform],
        "at_ms": SENT_AT * 1_000,
        "id": IDS[platform],
        "sentAt": SENT_AT * 1_000,
        "receivedAt": RECEIVED_AT_MS,
        "platform": platform,
        "profile": {"name": "Ada"} if platform == "telegram" else None,
    }
    message = update.pop("message", {})
    return {name: value for name, value in (update | message).items() if usual.get(name) != value}


# -- filling in --------------------------------------------------------------------------------------


def whole(platform: str, content: Json) -> Any:
    if "body" in content:
        return content["body"]
    fill = {"generic": _generic, "whatsapp": _whatsapp, "telegram": _telegram, "twilio": _twilio}.get(platform)
    return fill(content) if fill else _messenger(platform, content)


def _filled(usual: Json, given: Json) -> Json:
    return {name: value for name, value in (usual | given).items() if value is not None}


def _generic(message: Json) -> Json:
    return {"account": ACCOUNTS["generic"], "conversation": AUTHORS["generic"], "id": IDS["generic"]} | message


def _whatsapp(value: Json) -> Json:
    usual = {"from": AUTHORS["whatsapp"], "id": IDS["whatsapp"], "timestamp": str(SENT_AT)}
    items = [_filled(usual, item) for item in value["messages"]]
    metadata = {"display_phone_number": "+1 555-867-5310", "phone_number_id": ACCOUNTS["whatsapp"]}
    value = {"messaging_product": "whatsapp", "metadata": metadata} | value | {"messages": items}
    entry = {"id": "1022", "changes": [{"value": value, "field": "messages"}]}
    return {"object": OBJECTS["whatsapp"], "entry": [entry]}


def _messenger(platform: str, event: Json) -> Json:
    account = ACCOUNTS[platform]
    who = {"sender": {"id": AUTHORS[platform]}, "recipient": {"id": account}, "timestamp": SENT_AT * 1_000}
    event = _filled(who, event)
    if "message" in event:
        event["message"] = _filled({"mid": IDS[platform]}, event["message"])
    entry = {"id": account, "time": SENT_AT * 1_000, "messaging": [event]}
    return {"object": OBJECTS[platform], "entry": [entry]}


def _telegram(update: Json) -> Json:
    filled: Json = {"update_id": 9000}
    for name, value in update.items():
        usual = next((usual for kind, usual in ONE_MESSAGE.items() if name == kind), None)
        usual = ONE_MESSAGE["message"] if usual is None and name.endswith("message") else usual
        filled[name] = value if usual is None else _filled(usual, value)
    return filled


def _twilio(form: Json) -> Json:
    return _filled(
        {"MessageSid": IDS["twilio"], "From": AUTHORS["twilio"], "To": f"+{ACCOUNTS['twilio']}", "NumMedia": "0"}, form
    )
