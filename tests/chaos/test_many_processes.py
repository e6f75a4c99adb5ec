import time
from collections import defaultdict
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from tests.support.crowd import Place, execute, process, write
from tests.support.valkey_server import STRICT_SHEBANG, ValkeyServer

WRITERS, PROCESSORS, CONVERSATION_PROCESSORS, SECONDS = 16, 4, 4, 8


@pytest.mark.promise("P1", "P2", "P3")
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_nothing_is_lost_doubled_or_reordered_by_a_crowd_of_processes(valkey: ValkeyServer) -> None:
    admin = valkey.admin()
    admin.flushall()
    spawn = get_context("spawn")
    begun, written, drained = spawn.Barrier(WRITERS + 1), spawn.Event(), spawn.Event()
    claims, record = spawn.Queue(), spawn.Queue()

    def place(seed: int) -> Place:
        return Place(valkey.url, STRICT_SHEBANG, seed)

    def spawned(role: Callable[..., None], *args: object) -> BaseProcess:
        return spawn.Process(target=role, args=args, daemon=True)  # one that hangs must not keep pytest from ending

    writers = [spawned(write, place(1000), number, begun, written, record) for number in range(WRITERS)]
    others = [
        *(spawned(process, place(seed), drained, claims, record) for seed in range(PROCESSORS)),
        *(spawned(execute, place(50 + seed), drained, claims, record) for seed in range(CONVERSATION_PROCESSORS)),
    ]
    for each in (*writers, *others):
        each.start()

    store, recovered = place(0).store(), 0
    begun.wait(60)  # on a busy machine, the processes take long to start
    end_of_writing = time.monotonic() + SECONDS
    reports: list[tuple[str, Any]] = []
    while not drained.is_set():
        health = store.recover_expired(0)
        recovered += len(health.conversations)
        if time.monotonic() > end_of_writing and not written.is_set():
            written.set()
            reports += [record.get(timeout=60) for _ in writers]
        elif written.is_set() and health.pending + health.inflight == 0:
            drained.set()
        assert time.monotonic() < end_of_writing + 90, f"not drained: {health}"
        time.sleep(0.1)
    reports += [record.get(timeout=60) for _ in others]
    for each in (*writers, *others):
        each.join(30)
    assert {each.exitcode for each in (*writers, *others)} == {0}

    judge(reports)
    lived = [count for kind, count in reports if kind == "lives"]
    lives = sum(count for count, _ in lived)
    recovered += sum(count for _, count in lived)
    assert recovered > 0, "nobody died: this run proved less than it should"
    assert lives > PROCESSORS
    admin.close()


def judge(reports: list[tuple[str, Any]]) -> None:
    accepted = [message for kind, found in reports if kind == "accepted" for message in found]
    emitted = sorted(batch for kind, found in reports if kind == "emitted" for batch in found)
    assert len(accepted) > 1000
    assert len(set(accepted)) == len(accepted), "a message was accepted twice"

    contents: dict[str, list[bytes]] = {}
    came_out: dict[tuple[str, str], set[str]] = defaultdict(set)
    order: dict[tuple[str, str], list[int]] = defaultdict(list)
    for _, name, batch_id, payloads in emitted:
        first_time = batch_id not in contents
        assert contents.setdefault(batch_id, payloads) == payloads, "one batch id, two contents"
        for text in payloads:
            message_id = text.split(b"\n")[0].decode().strip('"')
            came_out[name, message_id].add(batch_id)
            if first_time:
                writer, number = message_id.split("-")
                order[name, writer].append(int(number))
    assert set(came_out) == set(accepted), "lost or invented"
    assert all(len(batch_ids) == 1 for batch_ids in came_out.values()), "one message, two batches"
    assert all(numbers == sorted(numbers) for numbers in order.values()), "out of order"
