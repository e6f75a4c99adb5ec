"""A message that ingest accepts is stored whole, in order, in its own conversation."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from message_buffer.lanes.outcomes import MessageBuffered, MessageDuplicate
from message_buffer.messages.message import Attachment, Message, decode, encode
from message_buffer.rules.layers import Rules
from tests.support.emission import claim_and_take, ids_of, take
from tests.support.engine import Engine, accepted
from tests.support.invariants import assert_invariants

DEFAULT = Rules()


@pytest.mark.case(11)
def test_two_writers_race_on_an_empty_conversation(engine: Engine) -> None:
    conversations = [f"c{n}" for n in range(100)]
    line = Barrier(2)

    def writer(name: str) -> list[MessageBuffered | MessageDuplicate]:
        store = engine.another_store()
        outcomes = []
        for conversation in conversations:
            line.wait(timeout=20)
            wire = b'"' + name.encode() + b'"\n{}'
            outcomes.append(accepted(store.buffer_message(conversation, name, payload=wire, timing=DEFAULT.timing)))
        return outcomes

    with ThreadPoolExecutor(2) as pool:
        ones, others = pool.map(writer, ["one", "other"])
    for conversation, one, other in zip(conversations, ones, others, strict=True):
        assert {one.count, other.count} == {1, 2}
        assert engine.store.peek_conversation(conversation).generation == 2
    assert sum(outcome.start_id is not None for outcome in ones + others) == 1
    assert_invariants(engine)
    engine.clock.advance(DEFAULT.typing_inference_ms)
    for conversation in engine.claim():
        assert sorted(ids_of(take(engine, conversation).payloads)) == ["one", "other"]


@pytest.mark.case(21)
def test_every_message_is_there_whole(engine: Engine) -> None:
    messages = [
        Message(id="m1", text="Look:", platform="whatsapp", received_at=1, author="Ana"),
        Message(
            id="m2", type="image", platform="whatsapp", received_at=2, reply_to="m0",
            attachments=[Attachment(type="image", url="https://example.org/a.jpg", size_bytes=3)],
        ),
        Message(id="m3", text="@bot 👀 ünï\u0000\r\n", platform="whatsapp", received_at=3, sent_at=2),
    ]  # fmt: skip
    for message in messages:
        engine.store.buffer_message("c", message.id, payload=encode(message), timing=DEFAULT.timing)
    engine.clock.advance(DEFAULT.typing_inference_ms)
    assert [decode(payload) for payload in claim_and_take(engine, "c").payloads] == messages


@pytest.mark.case(34)
def test_equal_texts_with_different_ids_are_both_kept(engine: Engine) -> None:
    engine.send("c", "m1", "ok")
    engine.send("c", "m2", "ok")
    engine.clock.advance(3000)
    assert [decode(payload).text for payload in claim_and_take(engine, "c").payloads] == ["ok", "ok"]


@pytest.mark.case(35)
def test_the_same_author_on_two_accounts_tenants_and_platforms_is_separate(engine: Engine) -> None:
    conversations = [
        f"{tenant}:{platform}:{account}:ana"
        for tenant in ("acme", "beta")
        for platform in ("whatsapp", "telegram")
        for account in ("1", "2")
    ]
    for conversation in conversations:
        engine.send(conversation, "m1", conversation)
        assert engine.send(conversation, "m2", rules=Rules(max_messages=2)).count == 2
    engine.store.cancel_buffer(conversations[0])
    batch_ids = set()
    for conversation in engine.claim():
        taken = take(engine, conversation)
        assert decode(taken.payloads[0]).text == conversation
        batch_ids.add(taken.batch_id)
    assert len(batch_ids) == len(conversations) - 1
