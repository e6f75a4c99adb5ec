"""The keys in the requests that leave the responder, through the handler's own wiring: its tenant's and account's."""

import json
from base64 import b64decode
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lambdas.responder import handler
from message_buffer.aws import clients as aws
from message_buffer.json_object import Json
from message_buffer.settings import LogSettings, ResponderSettings
from tests.support.fakes import FakeBus, RecordedTelemetry
from tests.support.fifo_queue import FakeSqs, FifoQueue
from tests.support.responder import NAME, OPTIONS, Tables, event

PREFIX = "message-buffer-prod/"
CONTEXT = SimpleNamespace(get_remaining_time_in_millis=lambda: 60_000)
# The keys that a request to each service needs.
NEEDED = {
    "openai": ["apiKey"], "whatsapp": ["accessToken"], "messenger": ["pageToken"], "telegram": ["botToken"],
    "twilio": ["accountSid", "authToken"],
}  # fmt: skip
TENANTS, ACCOUNTS = ("acme", "shop"), ("7", "8")
OWNERS = [("", ""), *(("tenants", each) for each in TENANTS), *(("accounts", each) for each in ACCOUNTS)]
# Who has keys of a service, and whether they are in a secret of their own.
TABLES = st.fixed_dictionaries(
    {(service, *owner): st.sampled_from(["", "value", "secret"]) for service in NEEDED for owner in OWNERS}
)
REQUESTS = st.lists(
    st.tuples(st.sampled_from(TENANTS), st.sampled_from(sorted(set(NEEDED) - {"openai"})), st.sampled_from(ACCOUNTS)),
    min_size=1, max_size=4,
)  # fmt: skip
Owner = tuple[str, str, str]


def key_of(owner: Owner, name: str) -> str:
    return f"<{'-'.join(owner)}-{name}>"


def secrets_of(tables: Mapping[Owner, str]) -> dict[str, str]:
    """Return the text of each secret by its name."""
    main: Json = {}
    named = {}
    for (service, kind, owner), place in tables.items():
        keys = {name: key_of((service, kind, owner), name) for name in NEEDED[service]} if place else {}
        if place == "secret":
            name = f"{PREFIX}{service}/{kind}/{owner}"
            named[name], keys = json.dumps(keys), {"secret": name}
        of_service = main.setdefault(service, {})
        if kind:
            of_service.setdefault(kind, {})[owner] = keys
        else:
            of_service |= keys
    return {"main": json.dumps(main), **named}


class FakeHttp:
    """The internet. It records all that each request carries."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    def post(self, url: str, body: bytes, *, headers: Mapping[str, str], seconds: float) -> Json:
        kind, _, value = headers.get("Authorization", "").partition(" ")
        credentials = b64decode(value).decode() if kind == "Basic" else value
        self.requests.append(f"{url} {body.decode()} {dict(headers)} {credentials}")
        said = {"type": "message", "content": [{"type": "output_text", "text": "Hello!"}]}
        choice = {"message": {"content": "Hello!"}}
        return {"output": [said], "choices": [choice]} if url.endswith(("/responses", "/chat/completions")) else {}

    def post_json(self, url: str, value: Json, **more: Any) -> Json:
        return self.post(url, json.dumps(value).encode(), **more)


@settings(max_examples=25)
@given(TABLES, REQUESTS, st.sampled_from(["openai", "chat-completions"]))
def test_a_request_carries_its_own_keys_and_no_byte_of_anothers(
    new_table: Tables, tables: Mapping[Owner, str], requests: list[tuple[str, str, str]], assistant: str
) -> None:
    queue, dead = (FifoQueue(name, lambda: 0) for name in ("batches", "dead"))
    sqs, http, bus, vault = FakeSqs(queue, dead, clock=lambda: 0), FakeHttp(), FakeBus(), secrets_of(tables)
    of_stage = ResponderSettings(
        log=LogSettings(), conversations_table=new_table().name, secret_id="main", secret_prefix=PREFIX,
        queues={"default": {"url": queue.url, "dead_letter_url": dead.url}}, gate_function="gate", event_bus="bus",
        oversize_bucket="oversize", options=OPTIONS._replace(assistant=assistant),
    )  # fmt: skip
    holds = {"ok": True, "result": {"holds": []}}
    client = aws.client
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handler, "read_settings", lambda _kind: of_stage)
        patch.setattr(handler, "Telemetry", lambda _log: RecordedTelemetry())
        patch.setattr(handler, "Secrets", lambda: SimpleNamespace(read=vault.__getitem__))
        patch.setattr(handler, "Functions", lambda: SimpleNamespace(call=lambda *_, **__: holds))
        patch.setattr(handler, "_http", lambda: http)
        patch.setattr(handler, "EventBus", lambda _name: bus)
        patch.setattr(aws, "client", lambda name, **named: sqs if name == "sqs" else client(name, **named))
        handler._components.cache_clear()
        for number, (tenant, platform, account) in enumerate(requests):
            conversation = f"{tenant}/{platform}/{account}/{number}"
            body = event(f"b-{number}", 1, "Hey", last_message_at_ms=1).replace(NAME, conversation)
            queue.put(body, group=str(number), deduplication_id="1")
            http.requests.clear()
            assert handler.handler(queue.event(queue.take(hidden_ms=1_000)), CONTEXT) == {"batchItemFailures": []}
            queue.messages.clear()
            expected = []
            for service, own in (("openai", ("tenants", tenant)), (platform, ("accounts", account))):
                # The most specific owner that has keys.
                owners = [(service, *own), (service, "tenants", tenant), (service, "", "")]
                expected += [next((each for each in owners if tables[each]), None)]
            keys = [[key_of(owner, name) for name in NEEDED[owner[0]]] for owner in expected if owner]
            if None in expected:
                assert len(http.requests) == 0, "a request without keys is not made"
                continue
            for request, own_keys in zip(http.requests, keys, strict=True):
                carried = {part.split(">")[0] for part in unquote(request).split("<")[1:]}
                assert carried == {key.strip("<>") for key in own_keys}
    assert "<" not in str(bus.published)
    handler._components.cache_clear()
