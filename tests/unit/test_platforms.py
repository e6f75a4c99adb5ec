"""Each platform: its signatures, the content of its webhooks, and that no body of it is answered with a 5xx."""

import hmac
import json
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdas.ingest.platforms import PLATFORMS
from lambdas.ingest.platforms.base import Credentials, Signer, Webhook
from message_buffer.messages.conversation_id import PLATFORM_NAMES
from message_buffer.rules.door_reading import PLATFORM
from tests.support.platforms import (
    FORM,
    RECEIVED_AT_MS,
    body_of,
    described,
    fixtures,
    name_of,
    signed,
    webhook,
)

SECRET = "s3cret"
ANYBODY = Signer(all_but=frozenset())
SHOP_BOT = Signer(frozenset({"shopbot"}))


def signer_of(platform: str) -> Signer:
    return SHOP_BOT if platform == "telegram" else ANYBODY


def authentic(sent: Webhook, *secrets: str, platform: str) -> bool:
    lower = sent._replace(headers={name.lower(): value for name, value in sent.headers.items()})
    return PLATFORMS[platform].authenticate(lower, Credentials(secrets)) is not None


# -- what is in it ---------------------------------------------------------------------------------


def test_every_platform_has_fixtures() -> None:
    assert {path.parent.name for path in fixtures()} == set(PLATFORMS)


@pytest.mark.parametrize("fixture", fixtures(), ids=name_of)
def test_what_a_platform_sends_is_read(fixture: Path) -> None:
    platform = fixture.parent.name
    sent = webhook(platform, body_of(platform, json.loads(fixture.read_text())))
    intake = PLATFORMS[platform].read(sent, signer=signer_of(platform), received_at_ms=RECEIVED_AT_MS)
    assert described(intake) == json.loads(fixture.with_suffix(".expected.json").read_text())


def test_numbers_and_addresses_have_one_form() -> None:
    def conversation(sender: str, to: str = "+15558675310") -> str:
        body = urlencode({"MessageSid": "SM1", "From": sender, "To": to, "Body": "hi"}).encode()
        (update,) = PLATFORMS["twilio"].read(webhook("twilio", body), signer=ANYBODY, received_at_ms=1).updates
        return str(update.conversation)

    assert conversation("+14017122661") == conversation("14017122661") == conversation(" +14017122661")
    assert conversation("Ada@Example.com") == conversation("ada@example.COM")
    whatsapp = conversation("whatsapp:+14017122661", "whatsapp:+15558675310")
    assert whatsapp == conversation("WhatsApp:14017122661", "whatsapp:15558675310")
    assert whatsapp != conversation("+14017122661")


# -- signatures, against values that were not made here ---------------------------------------------

# printf '%s' '{"object":"page","entry":[]}' | openssl dgst -sha256 -hmac s3cret
META_BODY = b'{"object":"page","entry":[]}'
META_SIGNATURE = "sha256=0798c798c2a0c4b160d0779c9886c7b2ed8aeffc6321169172af70412d25f0cb"

# The example of Twilio's documentation (Security, "Validating signatures from Twilio").
TWILIO_URL = "https://mycompany.com/myapp.php?foo=1&bar=2"
TWILIO_FIELDS = [
    ("CallSid", "CA1234567890ABCDE"),
    ("Caller", "+12349013030"),
    ("Digits", "1234"),
    ("From", "+12349013030"),
    ("To", "+18005551212"),
]
TWILIO_SIGNATURE, TWILIO_TOKEN = "0/KCTR6DLpKmkAf8muzZqo1nDgQ=", "12345"


def twilio(
    fields: list[tuple[str, str]] = TWILIO_FIELDS, url: str = TWILIO_URL, signature: str | None = TWILIO_SIGNATURE
) -> Webhook:
    headers = {"content-type": FORM} | ({} if signature is None else {"x-twilio-signature": signature})
    return Webhook("POST", url, headers, {}, urlencode(fields).encode())


@pytest.mark.parametrize("platform", ["whatsapp", "messenger", "instagram"])
def test_metas_signature_is_what_openssl_makes_of_the_body(platform: str) -> None:
    good = webhook(platform, META_BODY, **{"x-hub-signature-256": META_SIGNATURE})
    assert authentic(good, SECRET, platform=platform)
    assert authentic(good, "the next one", SECRET, platform=platform)
    assert not authentic(good._replace(body=META_BODY + b"\n"), SECRET, platform=platform)
    assert not authentic(good, "another", platform=platform)
    assert not authentic(good, platform=platform)


@pytest.mark.parametrize(
    "tampered",
    [
        twilio(TWILIO_FIELDS[:-1]),
        twilio(url="https://[oops/"),
        twilio(signature=None),
        twilio(signature="ü"),
        twilio(signature="\ud83d"),
        twilio()._replace(body=b"\xff"),
        twilio()._replace(body=b"a=1&" * 2_000),
        twilio()._replace(headers={"content-type": "application/json", "x-twilio-signature": TWILIO_SIGNATURE}),
    ],
)
def test_what_differs_from_twilios_example_is_not_authentic(tampered: Webhook) -> None:
    assert authentic(twilio(), TWILIO_TOKEN, platform="twilio")
    assert not authentic(tampered, TWILIO_TOKEN, platform="twilio")


@pytest.mark.parametrize("given", [None, "", "s3cre", "s3cret ", "S3CRET", "ü", "\ud83d"])
def test_telegrams_token_is_the_secret_itself(given: str | None) -> None:
    headers = {} if given is None else {"x-telegram-bot-api-secret-token": given}
    assert not authentic(webhook("telegram", b"{}", **headers), SECRET, platform="telegram")
    right = webhook("telegram", b"{}", **{"x-telegram-bot-api-secret-token": SECRET})
    assert authentic(right, SECRET, platform="telegram")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_secret_is_compared_in_constant_time(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def recorded(given: bytes, expected: bytes) -> bool:
        compared.append((given, expected))
        return compare(given, expected)

    monkeypatch.setattr(hmac, "compare_digest", recorded)
    body = b"a=1" if platform == "twilio" else b"{}"
    sent = webhook(platform, body, **signed(platform, body, SECRET, fields=parse_qsl("a=1")))
    assert authentic(sent, SECRET, "the next one", platform=platform)
    assert len({expected for _, expected in compared}) >= 2, "a match does not end the search"


@pytest.mark.parametrize("platform", PLATFORMS)
def test_without_a_signature_nothing_is_computed(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a body that nobody signed is not worth the time")

    monkeypatch.setattr(Credentials, "signer", refuse)
    monkeypatch.setattr("lambdas.ingest.platforms.twilio.parse_qsl", refuse)
    assert not authentic(webhook(platform, b"a=1"), SECRET, platform=platform)


# -- who may speak for whom ------------------------------------------------------------------------


def signer(credentials: Credentials, secret: str) -> Signer | None:
    sent = webhook("whatsapp", META_BODY, **signed("whatsapp", META_BODY, secret))
    lower = sent._replace(headers={name.lower(): value for name, value in sent.headers.items()})
    return PLATFORMS["whatsapp"].authenticate(lower, credentials)


def test_an_accounts_secret_speaks_for_that_account_alone() -> None:
    found = signer(Credentials(("everybodys",), {"a": ("as",), "b": ("bs",)}), "as")
    assert found is not None
    assert [found.speaks_for(account) for account in ("a", "b", "c")] == [True, False, False]


def test_the_platforms_secret_speaks_for_accounts_that_have_none() -> None:
    found = signer(Credentials(("everybodys",), {"a": ("as",), "off": ()}), "everybodys")
    assert found is not None
    assert [found.speaks_for(account) for account in ("a", "off", "c")] == [False, False, True]


def test_accounts_of_one_app_may_have_one_secret() -> None:
    found = signer(Credentials((), {"a": ("apps",), "b": ("apps",), "c": ("cs",)}), "apps")
    assert found is not None
    assert [found.speaks_for(account) for account in ("a", "b", "c")] == [True, True, False]


def test_two_bots_with_one_token_are_nobody() -> None:
    sent = webhook("telegram", b"{}", **{"x-telegram-bot-api-secret-token": SECRET})
    telegram = PLATFORMS["telegram"]
    assert telegram.authenticate(sent, Credentials((), {"one": (SECRET,), "two": (SECRET,)})) is None
    assert telegram.authenticate(sent, Credentials((SECRET,), {"one": (SECRET,)})) is None
    assert telegram.authenticate(sent, Credentials((SECRET,), {"one": ("other",)})) is not None


# -- hostile input ---------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", PLATFORMS)
@given(body=st.binary(max_size=200), given=st.text(max_size=60))
def test_no_bytes_and_no_header_get_past_the_signature(platform: str, body: bytes, given: str) -> None:
    names = ("x-signature-256", "x-hub-signature-256", "x-twilio-signature", "x-telegram-bot-api-secret-token")
    for prefix in ("", "sha256="):
        sent = webhook(platform, body, **dict.fromkeys(names, prefix + given))
        assert not authentic(sent, "a secret longer than what is drawn" * 3, platform=platform)


def test_the_names_that_rules_may_use_are_those_of_the_platforms() -> None:
    assert set(PLATFORM_NAMES) == {*PLATFORMS, PLATFORM}
