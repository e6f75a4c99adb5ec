"""Measure how late batches are after functions are killed under load: `python -m tools.bench.crashes [--quick]`.

On a local stage, messages arrive at a fixed rate, each in a new conversation. Each round kills the processes of the
processor, the conversation processor or both with SIGKILL. After the last kind of kill, no more messages arrive. The
emulator starts a new process at the next invocation.

*Next* is the time from the kill to the first event of a batch that was due after the kill. If there is no such batch,
it is the time to the first event after the kill. *Last* is the lateness of the latest batch.
"""

import signal
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from statistics import median
from typing import Any, cast

import psutil

from bufferctl.events import ArrivedEvent
from tests.support.aws_proxy import PUT_EVENTS, AwsProxy, aws_proxy
from tests.support.local_stage import LocalStage
from tools.bench.lateness import own_stage
from tools.bench.measure import figure
from tools.bench.report import Table, Target, arguments, report
from tools.local.events import collect
from tools.local.stage import Stage

ROUNDS = 5
RATE = 2
# The emulator starts a new process for a run if all others are busy. To limit the processes, the benchmark sends
# nothing while this many messages wait for their batch.
MOST_UNDER_WAY = 20
BEFORE_SECONDS, AFTER_SECONDS = 3.0, 15.0
LAST_EVENT_SECONDS = 60.0
WARM_UP_SECONDS = 5.0
# Turn the fallback off, because the DynamoDB table of a busy emulator would delay batches.
OVERRIDES = {"rules": {"silenceMs": 500, "typingInferenceMs": 0}, "fallback": False}
PROCESSOR, CONVERSATION_PROCESSOR = "processor", "conversation_processor"
NOBODY_WRITES = "both, while a message waits, and nobody writes again"
# How many seconds *next* and *last* may take at most.
MOST = {"next_s": 8.0, "last_s": 12.0}


class Scene:
    def __init__(self, stage: LocalStage, aws: AwsProxy) -> None:
        self.stage, self.aws = stage, aws

    def kill_processor(self) -> None:
        assert self.stage.kill(PROCESSOR)

    def kill_before_take(self) -> None:
        """Suspend the conversation processor until the processor has claimed a conversation, then kill it."""
        stopped = self.stage.workers(CONVERSATION_PROCESSOR)
        for each in stopped:
            with suppress(psutil.NoSuchProcess):
                each.suspend()
        deadline = time.monotonic() + 10
        while not self._any_untaken():
            assert time.monotonic() < deadline, "no conversation was claimed"
            time.sleep(0.01)
        time.sleep(0.2)  # until the processor has invoked the function
        for each in stopped:
            with suppress(psutil.NoSuchProcess):
                each.kill()

    def _any_untaken(self) -> bool:
        """Return whether a batch is claimed but not yet taken. Only then is its score in Valkey an integer."""
        flying = cast(list[tuple[str, float]], self.stage.valkey.zrange("{b0}:inflight", 0, -1, withscores=True))
        return any(score.is_integer() for _, score in flying)

    def kill_after_take(self) -> None:
        self._kill_while_it_emits(CONVERSATION_PROCESSOR)

    def kill_both(self) -> None:
        self._kill_while_it_emits(PROCESSOR, CONVERSATION_PROCESSOR)

    def kill_now(self) -> None:
        assert self.stage.kill(PROCESSOR, CONVERSATION_PROCESSOR)

    def _kill_while_it_emits(self, *roles: str) -> None:
        held = self.aws.hold(PUT_EVENTS)
        held.wait()
        self.stage.kill(*roles)
        held.release()
        self.aws.reset()


KILLS: dict[str, Callable[[Scene], None]] = {
    "processor": Scene.kill_processor,
    "conversation processor, before the take": Scene.kill_before_take,
    "conversation processor, after the take": Scene.kill_after_take,
    "both, after the take": Scene.kill_both,
    NOBODY_WRITES: Scene.kill_now,
}


def send_at_rate(stage: LocalStage, due_at_ms: dict[str, int], seconds: float) -> None:
    began = time.monotonic()
    for number in range(int(RATE * seconds)):
        time.sleep(max(0.0, began + number / RATE - time.monotonic()))
        while len(due_at_ms.keys() - {_id(each) for each in stage.inbox.arrivals}) >= MOST_UNDER_WAY:
            time.sleep(0.05)
        name = uuid.uuid4().hex
        response = stage.webhooks.post(
            "generic", {"account": "bench", "conversation": name, "id": name, "text": "text"}
        )
        assert response.status == 200, response
        ((_, state),) = response.json["conversations"].items()
        due_at_ms[name] = state["dueAt"]


def one_round(scene: Scene, kill: Callable[[Scene], None], *, after_seconds: float) -> dict[str, Any]:
    """Send messages, kill the processes, and continue to send for `after_seconds`.

    Return *next* and *last* in seconds, and how many batches were lost or came twice.
    """
    stage, due_at_ms = scene.stage, dict[str, int]()
    send_at_rate(stage, due_at_ms, BEFORE_SECONDS)
    with ThreadPoolExecutor(1) as pool:
        # Continue to send during the kill, because some kills wait for a step that a function reaches only with new
        # messages.
        killing = pool.submit(_killed_ms, scene, kill)
        send_at_rate(stage, due_at_ms, after_seconds)
        killed_ms = killing.result()
    wanted = set(due_at_ms)
    _wait_for(stage, wanted)
    came = [each for each in stage.inbox.arrivals if _id(each) in wanted]
    first = {_id(each): each.at_ms for each in reversed(came)}
    after = [each.at_ms for each in came if due_at_ms[_id(each)] >= killed_ms]
    after = after or [each.at_ms for each in came if each.at_ms >= killed_ms]
    return {
        "next_s": round((min(after) - killed_ms) / 1_000, 2),
        "last_s": round(max(at_ms - due_at_ms[name] for name, at_ms in first.items()) / 1_000, 2),
        "lost": len(wanted - first.keys()),
        "twice": len(came) - len(first),
    }


def _wait_for(stage: LocalStage, names: set[str]) -> None:
    stage.inbox.wait_until(
        lambda arrivals: names <= {_id(each) for each in arrivals}, timeout_seconds=LAST_EVENT_SECONDS
    )


def _killed_ms(scene: Scene, kill: Callable[[Scene], None]) -> float:
    kill(scene)
    return time.time() * 1_000


def _id(arrival: ArrivedEvent) -> str:
    return str(arrival.batch["messages"][0]["id"])


def main() -> None:
    given = arguments("tools.bench.crashes", __doc__, quick="one round")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that SIGTERM also stops the stage
    with own_stage(OVERRIDES) as outputs, collect(outputs) as inbox, aws_proxy(outputs.AwsEndpointUrl) as aws:
        stage = LocalStage(cast(Stage, None), outputs, inbox)
        with stage.configured(CONVERSATION_PROCESSOR, AWS_ENDPOINT_URL=aws.url):
            found = measure(Scene(stage, aws), rounds=1 if given.quick else ROUNDS)
    lost = sum(each["lost"] for rounds in found.values() for each in rounds)
    targets = [Target("messages lost after kill -9", 0, figure([lost]))]
    report("crashes", {"crashes": table(found)}, targets, quick=given.quick)


def measure(scene: Scene, *, rounds: int) -> dict[str, list[dict[str, Any]]]:
    warm_up: dict[str, int] = {}
    send_at_rate(scene.stage, warm_up, WARM_UP_SECONDS)
    _wait_for(scene.stage, set(warm_up))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in KILLS}
    for _ in range(rounds):
        for name, kill in KILLS.items():
            shown = one_round(scene, kill, after_seconds=0 if name == NOBODY_WRITES else AFTER_SECONDS)
            found[name].append(shown)
            print(f"{name:54}{shown}", flush=True)
    return found


def table(found: dict[str, list[dict[str, Any]]]) -> Table:
    """Return the median and the worst round of each kill, with the verdict on the median."""
    rows = [["killed", *(f"{column[:4]}, at most {most:g}" for column, most in MOST.items())]]
    for name, rounds in found.items():
        row = [name]
        for column, most in MOST.items():
            seconds = [each[column] for each in rounds]
            verdict = Target(name, most, figure(seconds)).verdict
            row.append(f"{median(seconds):.1f} / {max(seconds):.1f} {verdict}")
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
