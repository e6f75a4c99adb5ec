"""Messages: which are valid, and how they are encoded and decoded."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from message_buffer.errors import MalformedMessage, MessageTooLarge
from message_buffer.limits import MAX_MESSAGE_ID_BYTES
from message_buffer.messages.message import MAX_MESSAGE_BYTES, Attachment, Message, decode, encode
from message_buffer.messages.wire_form import id_line

# Version 1 as it was written first. Buffers contain such bytes, so these are never edited, only added to.
SMALLEST_V1 = b'"m1"\n{"v":1,"type":"text","receivedAt":1700000000123,"platform":"whatsapp"}'

any_text = st.text(st.characters(exclude_categories=()), max_size=50)
any_id = any_text.filter(bool)
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=8,
)
unknown_fields = st.dictionaries(st.text(max_size=50).map("x-".__add__), any_json, max_size=3)
times = st.integers(0, 253_402_300_799_999)


@st.composite
def attachments(draw: st.DrawFn) -> dict[str, Any]:
    known = st.fixed_dictionaries(
        {"type": any_text},
        optional={
            "url": any_text,
            "id": any_text,
            "mimeType": any_text,
            "name": any_text,
            "sizeBytes": st.integers(0, 10**12),
        },
    )
    return draw(unknown_fields) | draw(known)


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    known = st.fixed_dictionaries(
        {"id": any_id, "receivedAt": times, "platform": any_id},
        optional={
            "text": any_text,
            "type": any_text.filter(bool),
            "author": any_text | st.none(),
            "attachments": st.lists(attachments(), max_size=2),
            "replyTo": any_id | st.none(),
            "sentAt": times | st.none(),
            "agent": any_text | st.none(),
        },
    )
    return draw(unknown_fields) | draw(known)


def message(**fields: Any) -> Message:
    return Message.model_validate({"id": "m1", "receivedAt": 1, "platform": "sms", **fields})


# The model


@pytest.mark.parametrize(
    "fields",
    [
        {"id": ""},
        {"id": "é" * (MAX_MESSAGE_ID_BYTES // 2) + "x"},
        {"id": 5},
        {"receivedAt": "1"},
        {"receivedAt": -1},
        {"sentAt": 10**18},
        {"attachments": [{"url": "https://example.com/a"}]},
        {"v": 1},
        {"\ud800": 1},
    ],
)
def test_what_is_no_message_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        message(**fields)


def test_a_refusal_does_not_quote_what_people_wrote() -> None:
    with pytest.raises(ValidationError) as refused:
        message(text=["my password is hunter2"], attachments=[{"url": "hunter2"}])
    assert "attachments" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_half_of_a_surrogate_pair_in_a_text_is_replaced() -> None:
    mended = message(
        text="cut \ud83d",
        author="\udfff",
        attachments=[{"type": "image", "name": "\ud800.jpg", "c": ["\ud800"]}],
        extra={"k\ud800": ["\ud83d"]},
    )
    assert mended.text == "cut \ufffd"
    assert mended.author == "\ufffd"
    assert mended.attachments[0].name == "\ufffd.jpg"
    assert mended.attachments[0].model_extra == {"c": ["\ufffd"]}
    assert mended.model_extra == {"extra": {"k\ufffd": ["\ufffd"]}}


def test_ids_that_differ_in_half_a_surrogate_pair_stay_different() -> None:
    ids = [message(id=given_id).id for given_id in ("a\ud800", "a\ud801", "a\ufffd")]
    assert ids == ["a\\ud800", "a\\ud801", "a\ufffd"]
    assert message(replyTo="a\ud800").reply_to == ids[0]


# The wire form


@given(messages())
def test_any_message_survives_the_wire(fields: dict[str, Any]) -> None:
    sent = Message.model_validate(fields)
    received = decode(encode(sent))
    assert received == sent
    assert received.model_dump() == sent.model_dump()
    assert encode(received) == encode(sent)


@given(any_id, any_id)
def test_an_id_line_begins_no_other_messages_wire_form(one: str, other: str) -> None:
    wire = encode(message(id=other))
    assert wire.startswith(id_line(one)) == (message(id=one).id == message(id=other).id)


@pytest.mark.parametrize(
    ("message_id", "line"),
    [
        ("m1", b'"m1"\n'),
        ("a\nb\r\t\0\x7f", b'"a\\nb\\r\\t\\u0000\x7f"\n'),
        ('"\\/', b'"\\"\\\\/"\n'),
        ("é\u2028😀", b'"\xc3\xa9\xe2\x80\xa8\xf0\x9f\x98\x80"\n'),
        ("\ud800", b'"\\\\ud800"\n'),
    ],
)
def test_the_bytes_of_an_id_line_are_fixed(message_id: str, line: bytes) -> None:
    assert id_line(message_id) == line


def test_a_later_version_of_the_same_shape_is_read() -> None:
    later = decode(SMALLEST_V1.replace(b'"v":1', b'"v":2,"mood":"new"'))
    assert later.model_extra == {"mood": "new"}
    assert encode(later).startswith(b'"m1"\n{"v":1,')


def test_a_number_that_json_lacks_becomes_null() -> None:
    wire = encode(message(score=float("nan"), odds=[float("inf")]))
    assert decode(wire).model_extra == {"score": None, "odds": [None]}


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b'"m1"\n',
        b"m1\n{}",
        b'"m1"\n[]',
        b'"m1"\n{"receivedAt":1,"platform":"sms"}',
        b'"m1"\n{"v":0,"receivedAt":1,"platform":"sms"}',
        b'"\xff"\n{"v":1,"receivedAt":1,"platform":"sms"}',
        b'"m1"\n' + b"[" * 100_000,
        b'"m1"\n{"v":1,"receivedAt":1,"platform":"sms","x":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'"m1"\n{"v":1,"receivedAt":' + b"1" * 5000 + b',"platform":"sms"}',
    ],
)
def test_malformed_bytes_are_refused(wire: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(wire)


@given(st.binary() | st.binary().map(b'"m1"\n'.__add__))
def test_random_bytes_are_no_message(wire: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(wire)


def test_a_refused_wire_form_is_described_but_not_quoted() -> None:
    with pytest.raises(MalformedMessage, match="receivedAt, platform") as refused:
        decode(b'"m1"\n{"v":1,"text":"hunter2","receivedAt":"hunter2"}')
    assert "hunter2" not in f"{refused.value} {refused.value.__cause__}"


def test_a_message_at_the_size_limit_is_encoded_and_one_byte_more_is_refused() -> None:
    room = MAX_MESSAGE_BYTES - len(encode(message(text="x"))) + 1
    assert len(encode(message(text="x" * room))) == MAX_MESSAGE_BYTES == 65536
    with pytest.raises(MessageTooLarge, match="takes 65537 bytes on the wire, the limit is 65536"):
        encode(message(text="x" * (room + 1)))


@pytest.mark.case(21)
def test_every_attachment_is_there_whole() -> None:
    files = [Attachment(type="image", url=f"https://example.com/{n}", size_bytes=n) for n in range(50)]
    assert decode(encode(message(text="", attachments=files))).attachments == files


def test_two_halves_of_a_surrogate_pair_become_the_character() -> None:
    assert message(text="\ud83d\ude00").text == "😀"


def test_escaped_surrogates_on_the_wire_are_mended() -> None:
    wire = SMALLEST_V1.replace(b'"v":1', rb'"v":1,"text":"\ud83d","mood":"\ud83d"')
    assert decode(wire).text == "\ufffd"
    assert decode(wire).model_extra == {"mood": "\ufffd"}
