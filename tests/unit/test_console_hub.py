"""Every message reaches every open page, and a page that does not read costs the console no memory."""

import asyncio

from tools.console.hub import MAX_WAITING_MESSAGES, Hub, framed


async def read(hub: Hub, *, publish: int, end: bool = False) -> list[bytes | None]:
    """Open a page, publish this number of messages, and return all that the page gets."""
    reader = hub.open()
    for number in range(publish):
        hub.publish("state", {"n": number})
    if end:
        hub.end()
    is_there = asyncio.Event()
    asyncio.get_running_loop().call_soon_threadsafe(is_there.set)
    await is_there.wait()
    return [reader.get_nowait() for _ in range(reader.qsize())]


def test_every_message_reaches_the_page_in_order() -> None:
    assert asyncio.run(read(Hub(), publish=3)) == [framed("state", {"n": number}) for number in range(3)]


def test_a_page_that_does_not_read_is_disconnected() -> None:
    assert asyncio.run(read(Hub(), publish=MAX_WAITING_MESSAGES + 1)) == [None]


def test_pages_are_disconnected_when_the_console_ends() -> None:
    assert asyncio.run(read(Hub(), publish=0, end=True)) == [None]


def test_a_message_is_one_frame_whatever_people_write() -> None:
    message = framed("event", {"text": "one\n\ndata: two\r\x85\u2028"})
    assert message.count(b"\n") == 3
    assert message.endswith(b"\n\n")
    assert b"\r" not in message
