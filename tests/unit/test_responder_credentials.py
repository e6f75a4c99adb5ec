"""The keys that a request carries: its tenant's and its account's, by value or by the name of another secret."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdas.responder.credentials import CredentialStore
from lambdas.responder.errors import CallRefused
from message_buffer.errors import SendFailed
from message_buffer.limits import SECRET_LIFE_MS

MAIN, PREFIX = "the-secret", "message-buffer-prod/"


class Vault:
    """Secrets Manager: the text of each secret by its name."""

    def __init__(self, main: Any, **named: Any) -> None:
        self.texts = {MAIN: json.dumps(main)} | {PREFIX + name: json.dumps(value) for name, value in named.items()}
        self.reads: list[str] = []

    def read(self, secret_id: str) -> str:
        self.reads.append(secret_id)
        if secret_id not in self.texts:
            raise SendFailed("read secret: ResourceNotFoundException")
        return self.texts[secret_id]


def named(name: str) -> dict[str, str]:
    return {"secret": PREFIX + name}


def test_a_tenants_and_an_accounts_keys_may_be_in_secrets_of_their_own() -> None:
    main = {
        "openai": {"apiKey": "ours", "tenants": {"acme": named("ai")}},
        "twilio": {"accountSid": "AC", "authToken": "t", "accounts": {"7": {"accountSid": "AC7"} | named("sms")}},
    }
    store = CredentialStore(Vault(main, ai={"apiKey": "theirs"}, sms={"authToken": "t7", "n": 1}), MAIN, prefix=PREFIX)
    assert store.of("openai", tenant="acme") == {"apiKey": "theirs"}
    assert store.of("openai", tenant="shop") == store.of("openai") == {"apiKey": "ours"}
    assert store.of("twilio", "7", "acme") == {"accountSid": "AC7", "authToken": "t7"}
    assert store.of("twilio", "8", "acme") == {"accountSid": "AC", "authToken": "t"}


def test_a_named_secret_is_kept_for_a_while_and_then_read_again() -> None:
    now_ms = 0
    vault = Vault({"openai": named("ai")}, ai={"apiKey": "one"})
    store = CredentialStore(vault, MAIN, prefix=PREFIX, clock=lambda: now_ms)
    for _ in range(3):
        assert store.of("openai") == {"apiKey": "one"}
    assert vault.reads == [MAIN, PREFIX + "ai"]
    now_ms, vault.texts[PREFIX + "ai"] = SECRET_LIFE_MS + 1, '{"apiKey": "two"}'
    assert store.of("openai") == {"apiKey": "two"}


@pytest.mark.parametrize("name", ["sk-a-key", "message-buffer-prod", "message-buffer-prod-eu/ai", MAIN, ""])
def test_only_secrets_of_the_stage_may_be_named(name: str) -> None:
    vault = Vault({"openai": {"apiKey": "ours", "tenants": {"acme": {"secret": name}}}})
    with pytest.raises(CallRefused) as refused:
        CredentialStore(vault, MAIN, prefix=PREFIX).of("openai", tenant="acme")
    assert str(refused.value) == f"the responder's secret names a secret that does not begin with {PREFIX}"
    assert vault.reads == [MAIN]


@pytest.mark.parametrize("text", ["", "sk-plain", "[]", "{}", '{"apiKey": 1}'])
def test_a_tenant_whose_secret_has_no_keys_gets_nobody_elses(text: str) -> None:
    vault = Vault({"openai": {"apiKey": "ours", "tenants": {"acme": named("ai")}}})
    vault.texts[PREFIX + "ai"] = text
    with pytest.raises(CallRefused, match="is not a JSON object with keys"):
        CredentialStore(vault, MAIN, prefix=PREFIX).of("openai", tenant="acme")


def test_a_tenant_whose_secret_cannot_be_read_waits() -> None:
    vault = Vault({"openai": {"apiKey": "ours", "tenants": {"acme": named("ai")}}})
    with pytest.raises(SendFailed):
        CredentialStore(vault, MAIN, prefix=PREFIX).of("openai", tenant="acme")


TENANTS, ACCOUNTS, SERVICES = ("acme", "shop", "accounts"), ("7", "8", "tenants"), ("openai", "whatsapp")
KEYS = st.sets(st.sampled_from(["apiKey", "accessToken", "secret"]), max_size=3)
TABLES = st.fixed_dictionaries(
    {
        (service, kind, owner): KEYS
        for service in SERVICES
        for kind, owners in (("", ("",)), ("tenants", TENANTS), ("accounts", ACCOUNTS))
        for owner in owners
    }
)
REQUESTS = st.tuples(st.sampled_from(SERVICES), st.sampled_from(ACCOUNTS), st.sampled_from((*TENANTS, "")))


def written(tables: Mapping[tuple[str, str, str], set[str]]) -> Vault:
    """Return the secrets, in which the value of each key says whose it is."""
    main: dict[str, Any] = {}
    vault = Vault({})
    for (service, kind, owner), keys in tables.items():
        whose = f"{service}|{kind}|{owner}"
        given: dict[str, Any] = dict.fromkeys(keys, whose)
        if "secret" in keys:
            given["secret"] = PREFIX + whose
            vault.texts[given["secret"]] = json.dumps({"apiKey": whose, "botToken": whose})
        of_service = main.setdefault(service, {})
        if kind:
            of_service.setdefault(kind, {})[owner] = given
        else:
            of_service |= given
    vault.texts[MAIN] = json.dumps(main)
    return vault


@given(TABLES, st.lists(REQUESTS, min_size=1, max_size=12))
def test_a_request_carries_no_byte_of_another_tenants_or_accounts_keys(
    tables: Mapping[tuple[str, str, str], set[str]], requests: list[tuple[str, str, str]]
) -> None:
    store = CredentialStore(written(tables), MAIN, prefix=PREFIX)
    for service, account, tenant in requests:
        # From the least to the most specific.
        own = [(service, "", ""), (service, "tenants", tenant), (service, "accounts", account)]
        expected: dict[str, str] = {}
        for each in own:
            keys = tables.get(each, set())
            names = (keys - {"secret"}) | ({"apiKey", "botToken"} if "secret" in keys else set())
            expected |= dict.fromkeys(names, "|".join(each))
        assert store.of(service, account, tenant) == expected
