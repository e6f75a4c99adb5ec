"""The contract of a platform's module, and the functions that several platforms share."""

import hmac
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice
from typing import Any, NamedTuple, Protocol

from pydantic import ValidationError

from message_buffer.errors import InvalidInput
from message_buffer.json_object import Json
from message_buffer.limits import MAX_ITEMS_IN_A_WEBHOOK, MAX_TIME_MS, MINUTE_MS
from message_buffer.messages.changes import Change, Failed
from message_buffer.messages.conversation_id import AuthorIds, ConversationId, encode_conversation
from message_buffer.messages.message import Message
from message_buffer.messages.wire_form import mend_id

# The signed time in a webhook of the generic platform or of a door may be at most this long before or after ingest's
# time. There may be a difference because the sender's clock or ingest's clock is wrong.
MAX_SIGNATURE_AGE_MS = 5 * MINUTE_MS
# Phone numbers have at most 15 digits, and WhatsApp's ids at most 135 characters. Longer ones are ignored.
MAX_DIGITS_OF_A_NUMBER, MAX_USER_ID_CHARACTERS = 32, 256
# Lambda accepts an event of at most 6 MB. The gateway may encode the body as base64, which makes it a third longer.
MAX_WEBHOOK_BYTES = 4 * 1024 * 1024
# Each secret that ingest tries costs a hash of the entire body, so it tries only this many.
MAX_SECRETS_TRIED = 4
# The bounds of the search for account ids in a body: how many bytes ingest searches, and how many of the ids it uses.
MAX_BYTES_SEARCHED_FOR_ACCOUNTS = 256 * 1024
MAX_ACCOUNTS_CLAIMED = 16
# With one more digit, a time in seconds could be later than MAX_TIME_MS, the latest time that a message may have.
MAX_DIGITS_OF_A_TIME_IN_SECONDS = 11
# A time with more digits than MAX_DIGITS_OF_A_TIME_IN_SECONDS, up to this many, is in milliseconds.
MAX_DIGITS_OF_A_TIME_IN_MS = 15
# Cut the platform's words about an error. The longest that are known have a few hundred characters.
MAX_ERROR_CHARACTERS = 1_024
# WhatsApp's ids begin with a country's code.
_USER_ID = re.compile(r"[A-Za-z]{2}\.")


class InvalidWebhook(InvalidInput):
    """Raised for a body that cannot be read. The exception's text is returned to the sender with the 400."""


class TooManyItems(InvalidInput):
    """The webhook contains more items than any platform sends. The exception's text is for the sender."""


class Webhook(NamedTuple):
    method: str
    url: str
    """The whole public URL that the platform called, since some platforms sign it."""
    headers: Mapping[str, str]
    """Names in lower case."""
    query: Mapping[str, str]
    body: bytes


# -- signatures ------------------------------------------------------------------------------------


class Signer(NamedTuple):
    """The accounts for which the secret that signed a webhook is valid."""

    accounts: frozenset[str] = frozenset()
    all_but: frozenset[str] | None = None
    """Set if the secret is the platform's own. It is then valid for all accounts except these, which have secrets of
    their own."""

    def speaks_for(self, account: str) -> bool:
        return account in self.accounts or (self.all_but is not None and account not in self.all_but)


@dataclass(frozen=True)
class Credentials:
    """A stage's secrets for one platform. Two secrets are valid while one replaces the other."""

    secrets: tuple[str, ...] = ()
    accounts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Account -> the secrets that are valid for this account only."""
    verify_token: str | None = None

    @cached_property
    def every_secret(self) -> tuple[str, ...]:
        """Return each secret once, first those of the whole platform."""
        own = (secret for secrets in self.accounts.values() for secret in secrets)
        return tuple(dict.fromkeys([*self.secrets, *own]))

    def candidates(self, named: Iterable[str]) -> list[str]:
        """Return the few secrets to try for a body, first those of the accounts that the body names.

        Until a secret matches, use the account ids in the body only for this choice, because anybody can write a body.
        """
        own = list(dict.fromkeys(secret for account in named for secret in self.accounts.get(account, ())))
        # Ids found in the body may come from a customer's text. The secrets of these accounts must not displace the
        # secrets of the whole platform.
        of_platform = self.secrets[: MAX_SECRETS_TRIED // 2]
        first = MAX_SECRETS_TRIED - len(of_platform)
        ordered = (*own[:first], *of_platform, *own[first:], *self.every_secret[:MAX_SECRETS_TRIED])
        return list(dict.fromkeys(ordered))[:MAX_SECRETS_TRIED]

    def signer(self, signed_with: Callable[[str], bool], *, among: Iterable[str]) -> Signer | None:
        """Return the accounts for which the matching secrets are valid, or None if no secret matches."""
        # Try all secrets, even after a match, so that a forged request takes as long as a genuine one, and the time
        # says nothing about the secrets.
        matching = {secret for secret in among if signed_with(secret)}
        if not matching:
            return None
        accounts = frozenset(account for account, own in self.accounts.items() if not matching.isdisjoint(own))
        return Signer(accounts, None if matching.isdisjoint(self.secrets) else frozenset(self.accounts))


def is_same(given: str | None, expected: str) -> bool:
    """Return whether the texts are equal, in constant time. `given` is from outside and may contain anything."""
    return given is not None and hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


def hmac_signer(
    webhook: Webhook, credentials: Credentials, *, header: str, accounts: re.Pattern[bytes], prefix: bytes = b""
) -> Signer | None:
    """Return the accounts of the secret that made this header's `sha256=<hex HMAC-SHA256>`, or None if no secret did.

    The signature covers `prefix` and the body. The secrets of the account ids that `accounts` finds are tried first.
    """
    given = webhook.headers.get(header)
    if given is None:
        return None
    signed = prefix + webhook.body
    return credentials.signer(
        lambda secret: is_same(given, "sha256=" + hmac.digest(secret.encode(), signed, "sha256").hex()),
        among=credentials.candidates(_named_accounts(webhook.body, accounts)),
    )


@cache
def accounts_under(*keys: str) -> re.Pattern[bytes]:
    """Return a pattern that finds the JSON string that is the value of one of these keys."""
    names = "|".join(keys).encode()
    # The quantifiers are possessive, so that no text makes the pattern read the same bytes twice.
    return re.compile(rb'"(?:' + names + rb')"\s*+:\s*+("(?:[^"\\]|\\.)*+")', re.DOTALL)


def _named_accounts(body: bytes, accounts: re.Pattern[bytes]) -> Iterator[str]:
    """Yield the first account ids in a JSON body. Do not parse the body, because its signature is not checked yet."""
    for found in islice(accounts.finditer(body, 0, MAX_BYTES_SEARCHED_FOR_ACCOUNTS), MAX_ACCOUNTS_CLAIMED):
        try:
            yield str(json.loads(found[1].decode()))
        except ValueError:
            continue


# -- contents --------------------------------------------------------------------------------------


class Incoming(NamedTuple):
    conversation: ConversationId
    message: Message
    group: bool = False
    """Several authors write in this conversation."""
    agent: str | None = None
    """The agent that serves the conversation, if the message names it."""
    author_ids: AuthorIds | None = None
    """The ids of the author, if the platform may name an author by several ids."""


Update = Incoming | Change | Failed


class BusinessReply(NamedTuple):
    """A message of the business. In `Intake.sent`, no human agent typed it. In `human_replies`, one did or, if `app` is
    set, may have. Its text is not kept."""

    conversation: ConversationId
    id: str
    at_ms: int
    app: str | None = None
    """The app that sent the message. A rule says whether people type in that app. None if the platform itself says that
    a human agent typed the message."""
    customer_ids: AuthorIds | None = None
    """The ids by which the platform names the customer, if it has several."""


@dataclass
class Intake:
    """The contents of a webhook. Items that are not messages to us (echoes, statuses, …) are counted by kind."""

    updates: list[Update] = field(default_factory=list)
    human_replies: list[BusinessReply] = field(default_factory=list)
    """The echoes that a human agent may have typed. They are also counted in `ignored`."""
    sent: list[BusinessReply] = field(default_factory=list)
    """The replies that no human agent has typed. They are also counted in `ignored`."""
    ignored: Counter[str] = field(default_factory=Counter)
    only_agents_of_rules: bool = False
    """If True, the sender may name only the agent that the rules give to the account."""
    accounts: set[str] = field(default_factory=set)
    """Every account that the body has an item for, even an ignored item."""
    traceparent: str | None = None
    """The webhook's trace, as W3C's header names it."""
    left_out_value: str | None = None
    """The reason why a door left out a value, with the name of its field. Only the first such reason is kept."""

    def add(self, found: Update | BusinessReply) -> None:
        """Raise TooManyItems if the webhook has too many."""
        if isinstance(found, BusinessReply):
            self.human_replies.append(found)
        else:
            self.updates.append(found)
            self.accounts.add(found.conversation.account)
        if len(self.updates) + len(self.human_replies) > MAX_ITEMS_IN_A_WEBHOOK:
            raise TooManyItems(f"A webhook has at most {MAX_ITEMS_IN_A_WEBHOOK} messages, changes and human replies.")

    def take(self, read: Callable[[], Update | BusinessReply | str], *, kind: str | None = None) -> None:
        """Add what `read` returns. If it returns a kind instead, count the item under that kind, or under `kind`.

        A human agent's reply is also counted as an echo. An item that cannot be read is counted as `unreadable`, so
        that the other items of the webhook are kept. Raise TooManyItems if the webhook has too many.
        """
        try:
            found = read()
            if not isinstance(found, str | BusinessReply):
                encode_conversation(str(found.conversation))
        except (ValidationError, InvalidInput):
            found = "unreadable"
        if isinstance(found, str | BusinessReply):
            self.ignored[kind or (found if isinstance(found, str) else "echo")] += 1
        if not isinstance(found, str):
            self.add(found)


class Platform(Protocol):
    name: str
    """The name by which the webhook secrets and the logs call the platform."""
    skips_invalid: bool = True
    """Leave out invalid updates, because the platform would send a refused webhook again for days."""
    reports_typing: bool = False
    max_body_bytes: int = MAX_WEBHOOK_BYTES
    """The largest body that the platform sends. Refuse a larger one, because its signature would take long to check."""
    punishes_refusals: bool = False
    """The platform sends less, or nothing more, to an endpoint that often refuses webhooks. So a message over a
    quota or of a full conversation is put into the dead-letter queue instead."""
    comes_again: bool = True
    """True if the platform sends a webhook again after a 429."""
    time_header: str = ""
    """The header with the signed time, if the platform sends one."""
    requires_time: bool = False
    signs_url: bool = False
    """The signature covers the URL that the platform called."""
    empty_response: tuple[str, str] | None = None
    """The body and the content type of all responses with a status below 500. Set only for a platform that interprets
    the bodies of responses."""

    def authenticate(self, webhook: Webhook, credentials: Credentials) -> Signer | None:
        """Return the accounts for which the signature is valid, or None if none of our secrets made it."""

    def is_fresh(self, webhook: Webhook, *, now_ms: int, time_is_required: bool) -> bool:
        """Return False if the signed time is too far from now, or if it is missing although it is required."""
        if not self.time_header:
            return True
        given = webhook.headers.get(self.time_header)
        if given is None:
            return not (self.requires_time or time_is_required)
        signed_at_ms = ms_of_time(given)
        return signed_at_ms is not None and abs(now_ms - signed_at_ms) <= MAX_SIGNATURE_AGE_MS

    def read(self, webhook: Webhook, *, signer: Signer, received_at_ms: int) -> Intake:
        """Return the webhook's contents. Raise InvalidWebhook if it cannot be read."""

    def challenge(self, _query: Mapping[str, str], _credentials: Credentials) -> str | None:
        """Return the body of the response to a GET by which the platform checks this endpoint, or None to refuse it."""
        return None

    def read_typing(self, _webhook: Webhook, *, signer: Signer) -> list[ConversationId]:  # noqa: ARG002 - a default
        """Return the conversations whose author is typing. Raise InvalidWebhook."""
        return []


# -- reading ---------------------------------------------------------------------------------------


class Fields(dict[str, Any]):
    """A JSON object of a webhook. The methods treat a value of a wrong type like a missing one."""

    __slots__ = ()

    def word(self, name: str) -> str | None:
        """Return a text that is not empty."""
        value = self.get(name)
        return value if isinstance(value, str) and value else None

    def part(self, name: str) -> "Fields":
        return object_of(self.get(name))

    def values_of(self, name: str) -> list[Any]:
        value = self.get(name)
        return value if isinstance(value, list) else []

    def parts(self, name: str, *, most: int | None = None) -> "Iterator[Fields]":
        """Yield the values of a list, or only the first ones, each as an object."""
        return map(object_of, self.values_of(name)[:most])

    def number(self, name: str) -> int | float | None:
        value = self.get(name)
        return value if type(value) in (int, float) else None

    def name_or_number(self, name: str) -> str | None:
        """Return an id that the platform gives as a string or, sometimes, as a number."""
        value = self.get(name)
        return str(value) if type(value) is int else self.word(name)

    def id(self, name: str) -> str:
        """Return an id in the form that messages use. Raise InvalidWebhook if it is missing."""
        if (found := self.name_or_number(name)) is None:
            raise InvalidWebhook("an id is missing")
        return mend_id(found)

    def renamed(self, names: Mapping[str, str]) -> dict[str, str]:
        """Return the texts and ids that are not empty. `names` maps our names to the platform's names."""
        return {ours: value for ours, theirs in names.items() if (value := self.name_or_number(theirs))}


def object_of(value: Any) -> Fields:
    if isinstance(value, Fields):
        return value
    return Fields(value) if isinstance(value, dict) else Fields()


def parse_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidWebhook("The body is not JSON in UTF-8.") from error


def parse_object(body: bytes) -> Fields:
    parsed = parse_json(body)
    if not isinstance(parsed, dict):
        raise InvalidWebhook("The body must be a JSON object.")
    return Fields(parsed)


def to_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def author_ids(address: str | None, user_id: str | None) -> AuthorIds:
    """Return the ids by which WhatsApp names an author. `address` is the number or, if it is hidden, an id."""
    name = (address or "").strip().removeprefix("+")
    number = name if name.isascii() and name.isdigit() and len(name) <= MAX_DIGITS_OF_A_NUMBER else None
    found = user_id or (name if _USER_ID.match(name) else None)
    # Ignore an id that WhatsApp cannot have made.
    if found is None or not found.isascii() or not found.isprintable() or len(found) > MAX_USER_ID_CHARACTERS:
        found = None
    return AuthorIds(number, found)


def ms_of_time(value: Any) -> int | None:
    """Return a time in milliseconds, or None if the value is not a time in seconds or milliseconds."""
    text = str(value) if type(value) is int or isinstance(value, str) else ""
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS_OF_A_TIME_IN_MS):
        return None
    ms = int(text) * 1_000 if len(text) <= MAX_DIGITS_OF_A_TIME_IN_SECONDS else int(text)
    return ms if ms <= MAX_TIME_MS else None


def failed(
    conversation: ConversationId, message_id: str, at_ms: int, *, code: Any, words: Iterable[Any], ids: AuthorIds | None
) -> Failed:
    """Return a failed delivery. `words` are the platform's texts about the error, of which some may be equal."""
    # No platform has an error code with more digits.
    is_code = isinstance(code, int | str) and re.fullmatch("[0-9]{1,9}", str(code)) is not None
    text = strings_of(dict.fromkeys(each for each in words if isinstance(each, str)), separator=": ")
    return Failed(conversation, message_id, int(code) if is_code else None, text[:MAX_ERROR_CHARACTERS], at_ms, ids)


def drop_nones(fields: Json) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def drop_empty(fields: Json) -> dict[str, Any]:
    """Return the fields that are not empty. Platforms mean the same by an empty field and by a missing one."""
    return {name: value for name, value in fields.items() if value not in (None, "", False, [], {})}


def object_in(text: Any) -> Fields:
    """Return the object in a JSON string, or the value itself if it is an object, or else an empty object."""
    try:
        return object_of(json.loads(text) if isinstance(text, str) else text)
    except (ValueError, RecursionError):
        return Fields()


def strings_of(values: Iterable[Any], *, separator: str = ", ") -> str:
    return separator.join(value for value in values if isinstance(value, str) and value)
