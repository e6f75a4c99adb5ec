"""Shows dead letters without removing them, and sends their batches again under their old ids."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Self

from lambdas.admin.requests import ListDeadLetters, OfDeadLetter, ShowDeadLetter
from lambdas.operations import OperationRefused, SubjectNotFound
from message_buffer import errors
from message_buffer.aws.functions import Functions
from message_buffer.events.dead_letters import MESSAGE_LETTER, DeadLetterQueue, Letter
from message_buffer.json_object import Json
from message_buffer.limits import MAX_CALL_MS

# Wait this long for the function that emits the batch. The conversation processor's default time-out is 24 seconds, and
# a cold start takes additional time.
REDRIVE_ANSWER_SECONDS = 30.0
# While the admin function reads dead letters, the queue hides them for this time, which is longer than the function may
# run. If the function dies, the dead letters become visible again after this time.
DEAD_LETTER_HIDDEN_SECONDS = 90
# The search for a dead letter stops when less time than this is left, because the function then still has to redrive
# the dead letter and to make the others visible again.
MIN_MS_LEFT_TO_LOOK_AT_DEAD_LETTERS = int(REDRIVE_ANSWER_SECONDS * 1_000) + MAX_CALL_MS
# The fields that an operator needs. None of them contains what people wrote.
HEAD = ("batchId", "conversationId", "reason", "attempt", "generation", "firstAt", "lastAt", "flushReason")
# The name of the buffer's own dead letters; the others have the name of their queue.
BUFFER = ""
TimeLeft = Callable[[], int]


class DeadLetters:
    """Lists, shows and redrives the buffer's dead letters, and lists those of the stage's queues.

    The first of the `redrive_functions` emits a batch again. The second one, ingest, buffers a message again.
    """

    def __init__(
        self,
        queues: Mapping[str, DeadLetterQueue],
        functions: Functions,
        redrive_functions: tuple[str, str],
        time_left: TimeLeft,
    ) -> None:
        self._queues = queues
        self._queue = queues[BUFFER]
        self._functions = functions
        self._emitter, self._ingest = redrive_functions
        self._time_left = time_left

    def list(self, request: ListDeadLetters) -> Json:
        queues = {name: queue for name, queue in self._queues.items() if request.replies == (name != BUFFER)}
        if not queues:
            raise errors.InvalidInput("replies: this stage has no queues; leave it out")
        heads: list[Json] = []
        for name, queue in queues.items():
            with HiddenLetters(queue, self._time_left) as letters:
                read = [*islice(letters, request.limit - len(heads))]
            heads += [({"queue": name} if request.replies else {}) | _head(each) for each in read]
        return {"letters": heads, "inQueue": sum(queue.count() for queue in queues.values())}

    def show(self, request: ShowDeadLetter) -> Json:
        with HiddenLetters(self._queue, self._time_left) as letters:
            found = _find(letters, request.batch_id)
        payloads = {name: value for name, value in parse_letter(found).items() if name.startswith("payloads")}
        return _head(found) | (payloads if request.payloads else {})

    def redrive(self, request: OfDeadLetter) -> Json:
        """Send the batch again, and then remove its dead letter. Raise OperationRefused if the batch was not sent."""
        with HiddenLetters(self._queue, self._time_left) as letters:
            letter = _find(letters, request.batch_id)
            parsed = parse_letter(letter)
            if not parsed.get("payloads") and not parsed.get("payloadsRef"):
                raise OperationRefused(
                    "The dead letter of this batch contains no messages, so the batch cannot be sent again; the dead"
                    " letter stays."
                )
            function = self._ingest if parsed.get("kind") == MESSAGE_LETTER else self._emitter
            response = self._functions.call(function, {"redrive": parsed}, response_seconds=REDRIVE_ANSWER_SECONDS)
            if response.get("redriven") != request.batch_id:
                raise OperationRefused(
                    f"The batch was not sent again, and its dead letter stays in the queue: {_problem(response)}."
                )
            letters.delete(letter)
        return {"redriven": request.batch_id}


class HiddenLetters:
    """Yields the queue's dead letters. Each is hidden from other readers of the queue until it is given back."""

    def __init__(self, queue: DeadLetterQueue, time_left: TimeLeft) -> None:
        self._queue = queue
        self._time_left = time_left
        self._hidden: list[Letter] = []
        self.finished = False
        """True after the queue was read to its end; False if the time ran out first."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        # A failure does not matter, because the queue makes the dead letters visible again by itself a little later.
        with suppress(errors.SendFailed):
            self._queue.give_back(self._hidden)

    def delete(self, letter: Letter) -> None:
        self._queue.delete(letter)
        self._hidden.remove(letter)

    def __iter__(self) -> Iterator[Letter]:
        while self._time_left() > MIN_MS_LEFT_TO_LOOK_AT_DEAD_LETTERS:
            received = self._queue.receive(hidden_seconds=DEAD_LETTER_HIDDEN_SECONDS)
            if not received:
                self.finished = True
                return
            self._hidden += received
            yield from received


def _find(letters: Iterable[Letter], batch_id: str) -> Letter:
    for letter in letters:
        if parse_letter(letter).get("batchId") == batch_id:
            return letter
    raise SubjectNotFound(
        f"No dead letter of the batch {batch_id} was found. Another operator may be looking at it; try again in"
        f" {DEAD_LETTER_HIDDEN_SECONDS} s."
    )


def _head(letter: Letter) -> Json:
    """Return the fields that operators need. If the message is no dead letter, all except `reason` are None."""
    parsed = parse_letter(letter)
    payloads = parsed.get("payloads")
    messages = len(payloads) if isinstance(payloads, list) else None  # None if they are stored in the bucket
    # A foreign message may have anything under these names.
    shown = {name: value if isinstance(value := parsed.get(name), str | int) else None for name in HEAD}
    return shown | {"messages": messages}


def parse_letter(letter: Letter) -> Json:
    """Return the fields of a dead letter. One of a stage's queue is an event, so take them from its `detail`."""
    try:
        parsed = json.loads(letter.body)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        return {"reason": "this is not the body of a dead letter"}
    if not isinstance(detail := parsed.get("detail"), dict):
        return parsed
    times = metadata if isinstance(metadata := detail.get("metadata"), dict) else {}
    found = {name: detail.get(name) for name in ("batchId", "conversationId", "generation", "flushReason")}
    found |= {"firstAt": times.get("firstMessageAt"), "lastAt": times.get("lastMessageAt")}
    # An entry has no reason if SQS itself moved it, after too many deliveries.
    return found | {"reason": letter.reason or "it was delivered too often", "payloads": detail.get("messages")}


def _problem(response: Json) -> str:
    kind = str(response.get("errorType", "no answer"))
    # Show the text only of our own errors, because the text of any other error may quote a customer's message.
    return f"{kind}: {response.get('errorMessage')}" if hasattr(errors, kind) else kind
