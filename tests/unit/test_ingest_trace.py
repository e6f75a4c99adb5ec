"""The trace of a webhook: its sender's or X-Ray's, from the header to the batch's event."""

import pytest

from message_buffer.events.batch_ready import content_of, event_of
from message_buffer.json_object import Json
from message_buffer.lanes.outcomes import BatchTaken
from message_buffer.messages.message import Message, encode
from tests.support.ingest_scene import CHAT, SECRET, Scene, gateway, message
from tests.support.platforms import body_of, signed

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
XRAY = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled="


def post(scene: Scene, header: str | None, *messages: Json) -> None:
    body = body_of("generic", [*messages] or [message()])
    headers = {} if header is None else {"Traceparent": header}
    assert scene.call(gateway("generic", body, headers=headers | signed("generic", body, SECRET)))[0] == 200


def traces(scene: Scene) -> list[str | None]:
    return [each.get("traceparent") for each in scene.buffered(CHAT)]


@pytest.mark.parametrize(
    ("header", "xray", "trace"),
    [
        (TRACE, None, TRACE),
        (TRACE, XRAY + "1", TRACE),
        (None, XRAY + "1;Lineage=a87bd80c:1", "00-5759e988bd862e3fe1be46a994272793-53995c3f42cd8ad8-01"),
        (None, XRAY + "0;Lineage=a87bd80c:1", None),
        (None, "Root=1-5759e988;Lineage=a:1", None),
        (None, None, None),
        (TRACE + "-more", None, None),
        (TRACE.upper(), None, None),
        (TRACE.replace("00-", "ff-", 1), None, None),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", None, None),
        (f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01", None, None),
        ("x" * 8_000, None, None),
    ],
)
def test_a_message_keeps_the_trace_of_its_webhook(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, header: str | None, xray: str | None, trace: str | None
) -> None:
    monkeypatch.delenv("_X_AMZN_TRACE_ID", raising=False)
    if xray is not None:
        monkeypatch.setenv("_X_AMZN_TRACE_ID", xray)
    post(scene, header, message("m1"), message("m1", "edited", edited=True), message("m2"))
    assert traces(scene) == [trace, trace]
    assert TRACE not in str(scene.telemetry.lines)


def test_the_event_has_the_first_trace_of_its_messages() -> None:
    def stored(number: int, trace: str | None) -> bytes:
        return encode(Message(id=f"m{number}", received_at=number, platform="generic", traceparent=trace))

    def event(*payloads: bytes) -> Json:
        taken = BatchTaken("b", 1, 1, 0, 0, 0, "silence", "silenceMs", 0, [*payloads])
        return event_of(CHAT, taken, content_of(taken.payloads), emitted_at_ms=0)

    found = event(stored(1, None), stored(2, TRACE), stored(3, TRACE[:-1] + "0"))
    assert found["traceparent"] == TRACE
    assert not any("traceparent" in each for each in found["messages"])
    assert "traceparent" not in event(stored(1, None))
