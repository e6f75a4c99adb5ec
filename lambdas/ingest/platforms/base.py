"""What a platform has to tell about itself, and the words they share."""

import hmac
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

from pydantic import ValidationError

from lambdas.limits import MAX_DIGITS_OF_A_TIME_IN_SECONDS
from message_buffer.errors import InvalidInput
from message_buffer.lanes.valkey.keys import encode_conversation
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.messages.message import MAX_TIME_MS, Message
from message_buffer.messages.wire_form import mend_id

Headers = Mapping[str, str]
Query = Mapping[str, str]
Json = Mapping[str, Any]


class InvalidWebhook(InvalidInput):
    """What is wrong with a body, in a sentence for who sent it."""


class Webhook(NamedTuple):
    method: str
    url: str
    """Whole and public, as the platform called it: some sign it."""
    headers: Headers
    """Names in lower case."""
    query: Query
    body: bytes


# -- who signed ------------------------------------------------------------------------------------


class Signer(NamedTuple):
    """Whom the secrets that signed a webhook may speak for."""

    accounts: frozenset[str] = frozenset()
    all_but: frozenset[str] | None = None
    """Of the platform-wide secret: everybody but these, who have secrets of their own."""

    def speaks_for(self, account: str) -> bool:
        return account in self.accounts or (self.all_but is not None and account not in self.all_but)


class Credentials(NamedTuple):
    """What a stage knows of a platform. Two secrets are valid while one replaces the other."""

    secrets: tuple[str, ...] = ()
    accounts: Mapping[str, tuple[str, ...]] = {}
    """Secrets that are good for this account alone."""
    verify_token: str | None = None

    @property
    def are_missing(self) -> bool:
        return not self.secrets and not any(self.accounts.values())

    def signer(self, signed_with: Callable[[str], bool]) -> Signer | None:
        # Every secret is tried, and none longer than another.
        own = {account: [signed_with(secret) for secret in secrets] for account, secrets in self.accounts.items()}
        everybodys = [signed_with(secret) for secret in self.secrets]
        accounts = frozenset(account for account, matches in own.items() if any(matches))
        if not accounts and not any(everybodys):
            return None
        return Signer(accounts, frozenset(self.accounts) if any(everybodys) else None)


def is_same(given: str | None, expected: str) -> bool:
    """Compare in constant time; `given` may be anything that came in."""
    return given is not None and hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


def hmac_signer(webhook: Webhook, credentials: Credentials, *, header: str) -> Signer | None:
    """Who made the `sha256=<hex HMAC-SHA256 of the body>` in this header?"""
    given = webhook.headers.get(header)
    if given is None:
        return None
    return credentials.signer(
        lambda secret: is_same(given, "sha256=" + hmac.new(secret.encode(), webhook.body, sha256).hexdigest())
    )


# -- what is in it ---------------------------------------------------------------------------------


class Incoming(NamedTuple):
    conversation: ConversationId
    message: Message
    group: bool = False
    """Several authors write in this conversation."""
    agent: str | None = None
    """Who serves it, if that is told with the message."""


class Edited(NamedTuple):
    conversation: ConversationId
    message: Message
    """As it is now, under the id that it always had."""
    at_ms: int
    group: bool = False
    agent: str | None = None


class Deleted(NamedTuple):
    conversation: ConversationId
    message_id: str
    author: str | None
    at_ms: int
    group: bool = False


class Reacted(NamedTuple):
    conversation: ConversationId
    message_id: str
    author: str | None
    emoji: str | None
    """None takes a reaction back."""
    at_ms: int


Update = Incoming | Edited | Deleted | Reacted


@dataclass
class Intake:
    """What a webhook holds; what is nothing for us (echoes, statuses, …) is counted by kind."""

    updates: list[Update] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    accounts: set[str] = field(default_factory=set)
    """All that it holds anything for, be it ignored."""

    def add(self, update: Update) -> None:
        self.updates.append(update)
        self.accounts.add(update.conversation.account)

    def take(self, read: Callable[[], Update | str]) -> None:
        """Add what is read, or count it under the kind that is answered. What cannot be read costs no neighbour."""
        try:
            update = read()
            if not isinstance(update, str):
                encode_conversation(str(update.conversation))
        except (ValidationError, InvalidInput):
            update = "unreadable"
        if isinstance(update, str):
            self.ignored[update] += 1
        else:
            self.add(update)


class Platform(Protocol):
    name: str
    leaves_out_what_is_wrong: bool = True
    """A platform that sends a refused webhook again for days would send its good messages with it."""
    tells_typing: bool = False

    def authenticate(self, webhook: Webhook, credentials: Credentials) -> Signer | None: ...

    def read(self, webhook: Webhook, *, signer: Signer, received_at_ms: int) -> Intake:
        """Raises InvalidWebhook."""

    def challenge(self, _query: Query, _credentials: Credentials) -> str | None:
        """The answer to a GET that asks whether we are who the platform's settings say; None refuses."""
        return None

    def read_typing(self, _webhook: Webhook) -> list[ConversationId]:
        """In which conversations somebody is typing. Raises InvalidWebhook."""
        return []

    def acknowledge(self, result: Json) -> tuple[str, str]:
        """(body, content type) of the 200."""
        return to_json(result), "application/json"


# -- reading ---------------------------------------------------------------------------------------


def parse_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidWebhook("The body is not JSON in UTF-8.") from error


def to_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def object_of(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def word_of(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def id_of(value: Any) -> str:
    """An id that a platform gives as a string or a number."""
    if type(value) is int:
        return str(value)
    if not isinstance(value, str) or not value:
        raise InvalidWebhook("an id is missing")
    return mend_id(value)


def address_of(value: Any) -> str:
    """A person's number or address, in the one form that names a conversation."""
    return id_of(value).strip().removeprefix("+").lower()


def ms_of_seconds(seconds: Any) -> int | None:
    text = str(seconds) if type(seconds) is int or isinstance(seconds, str) else ""
    return (
        int(text) * 1_000
        if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS_OF_A_TIME_IN_SECONDS
        else None
    )


def time_ms(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_TIME_MS else None


def drop_nones(fields: Json) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def strings_of(values: list[Any], *, separator: str = ", ") -> str:
    return separator.join(value for value in values if isinstance(value, str) and value)
