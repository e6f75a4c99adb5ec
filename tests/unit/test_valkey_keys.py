"""The names of the keys, and the shard of each conversation."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from message_buffer.lanes.valkey.keys import batch_prefix, script_keys, shard_of, wake_key
from message_buffer.lanes.valkey.scripts import LUA_DIRECTORY, load_script
from message_buffer.messages.conversation_id import MAX_CONVERSATION_ID_BYTES, encode_conversation

SCRIPTS = [load_script(path.stem) for path in sorted(LUA_DIRECTORY.glob("*.lua"))]

conversations = st.text(min_size=1, max_size=200).filter(
    lambda text: 0 < len(text.encode("utf-8", "surrogatepass")) <= MAX_CONVERSATION_ID_BYTES
)
valid_conversations = conversations.filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))


# -- shards ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conversation", "of_2", "of_3", "of_16", "of_64"),
    [
        ("c", 1, 0, 15, 47),
        ("acme:whatsapp:+15550100:+15550199", 0, 0, 4, 36),
        ("ünï", 0, 1, 10, 42),
        ("👩‍👩‍👧‍👦", 1, 1, 7, 39),
        ("{b0}", 1, 1, 13, 61),
    ],
)
def test_a_conversation_stays_on_its_shard_for_ever(
    conversation: str, of_2: int, of_3: int, of_16: int, of_64: int
) -> None:
    """Compare with literal values: if they ever change, a deploy would look for open buffers on other shards."""
    assert [shard_of(conversation, shards) for shards in (1, 2, 3, 16, 64)] == [0, of_2, of_3, of_16, of_64]


@pytest.mark.parametrize("shards", [2, 3, 16, 100])
def test_conversations_spread_evenly_over_the_shards(shards: int) -> None:
    total = 20_000
    counts = Counter(shard_of(f"acme:whatsapp:+15550100:+1555{n:07}", shards) for n in range(total))
    assert counts.keys() == set(range(shards))
    assert max(counts.values()) < 1.35 * total / shards
    assert min(counts.values()) > 0.65 * total / shards


def test_the_shards_of_a_large_stage_lie_in_different_slots() -> None:
    assert len({key_slot(wake_key(shard)) for shard in range(100)}) == 100


# -- keys ------------------------------------------------------------------------------------------


def test_keys_read_as_the_headers_spell_them() -> None:
    assert script_keys(("pending", "conv:<id>", "wake"), 3, b"ana") == [
        b"{b3}:pending",
        b"{b3}:conv:ana",
        b"{b3}:wake",
    ]
    assert wake_key(12) == b"{b12}:wake"


@given(conversation=valid_conversations, shard=st.integers(0, 999))
def test_all_keys_of_a_call_lie_in_the_shards_slot_whatever_the_conversation_is_called(
    conversation: str, shard: int
) -> None:
    slot = key_slot(b"{b%d}" % shard)
    for script in SCRIPTS:
        assert {key_slot(key) for key in script_keys(script.keys, shard, encode_conversation(conversation))} == {slot}


# -- ids -------------------------------------------------------------------------------------------


def test_ids_that_look_alike_stay_apart() -> None:
    """Keep them apart without normalisation, since the platform does."""
    composed, decomposed = "é", "e\u0301"
    assert encode_conversation(composed) != encode_conversation(decomposed)
    assert batch_prefix(composed) != batch_prefix(decomposed)


# -- the first part of batch ids -------------------------------------------------------------------


def test_a_batch_prefix_is_stable_and_short() -> None:
    assert batch_prefix("c") == "ac9c7280fd44ed4ae64bd9f0"
    assert {len(batch_prefix(conversation)) for conversation in ("a", "b" * 1024, "👀")} == {24}
