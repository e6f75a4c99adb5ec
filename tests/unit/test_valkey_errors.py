"""Whatever the client library raises, callers get one of four errors, and know whether to try again."""

from collections.abc import Callable
from typing import Any

import pytest
from redis import exceptions as theirs
from redis.exceptions import ResponseError

from message_buffer.errors import (
    MessageBufferError,
    ScriptInvariantBroken,
    SignInUnavailable,
    StoreError,
    StoreOutOfMemory,
    StoreSignInRefused,
    StoreThrottled,
    StoreUnavailable,
)
from message_buffer.lanes.valkey.connection import Connection
from message_buffer.lanes.valkey.scripts import load_script
from tests.support.engine import ManualClock

SCRIPT = load_script("renew_lease")
KEYS = [b"{b0}:processor"]


class Client:
    """Does what the test says, one thing for each call."""

    def __init__(self, *does: Any) -> None:
        self.does = list(does)
        self.commands: list[str] = []

    def execute_command(self, command: str, *args: Any) -> Any:
        self.commands.append(command)
        doing = self.does.pop(0)
        if isinstance(doing, Exception):
            raise doing
        return doing

    def close(self) -> None:
        self.commands.append("closed")


def run(client: Client, attempts: int = 2) -> Any:
    return Connection(opening(client, client), attempts).run(SCRIPT, KEYS, (1, "l", 2))


def opening(*does: Any) -> Callable[[], Any]:
    left = list(does)

    def open_client() -> Any:
        doing = left.pop(0)
        if isinstance(doing, Exception):
            raise doing
        return doing

    return open_client


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (theirs.ConnectionError("Connection reset by peer"), StoreUnavailable),
        (theirs.TimeoutError("Timeout reading from socket"), StoreUnavailable),
        (theirs.AuthenticationError("invalid username-password pair"), StoreSignInRefused),
        (ResponseError("service is not available"), SignInUnavailable),
        (ResponseError("IAM Authentication service is not available"), SignInUnavailable),
        (ResponseError("Exceeded limit of IAM Authentication requests"), SignInUnavailable),
        (theirs.BusyLoadingError("loading the dataset"), StoreUnavailable),
        (theirs.ReadOnlyError("You can't write against a read only replica."), StoreUnavailable),
        (theirs.TryAgainError("Multiple keys request during rehashing of slot"), StoreUnavailable),
        (theirs.ClusterDownError("The cluster is down"), StoreUnavailable),
        (theirs.MaxConnectionsError("Too many connections"), StoreUnavailable),
        (theirs.MovedError("1234 cache.example.org:6379"), StoreUnavailable),
        (theirs.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), StoreOutOfMemory),
        (ResponseError("OOM command not allowed when used memory > 'maxmemory'."), StoreOutOfMemory),
        (ResponseError("Request was THROTTLED"), StoreThrottled),
        (ResponseError("ERR Lua scripts without any input keys are not supported."), ScriptInvariantBroken),
        (theirs.NoPermissionError("NOPERM this user has no permissions"), ScriptInvariantBroken),
        (theirs.ClusterCrossSlotError("Keys in request don't hash to the same slot"), ScriptInvariantBroken),
        (theirs.DataError("Invalid input of type: 'dict'."), ScriptInvariantBroken),
        (ResponseError("user_script:3: attempt to index a nil value"), ScriptInvariantBroken),
    ],
    ids=lambda value: f"{type(value).__name__}: {value}" if isinstance(value, Exception) else value.__name__,
)
def test_an_error_of_the_client_library_becomes_one_of_ours(error: Exception, ours: type[StoreError]) -> None:
    with pytest.raises(StoreError) as raised:
        run(Client(error, error))
    assert type(raised.value) is ours
    assert raised.value.__cause__ is error
    assert str(raised.value).startswith("renew_lease: ")
    assert ours.retryable == (ours is not ScriptInvariantBroken)


def test_every_error_tells_whether_to_come_again() -> None:
    def tree(error: type[MessageBufferError]) -> list[type[MessageBufferError]]:
        return [error, *(deeper for child in error.__subclasses__() for deeper in tree(child))]

    ours = [error for error in tree(MessageBufferError) if error.__module__ == MessageBufferError.__module__]
    assert {error.__name__ for error in ours if error.retryable} == {
        "StoreUnavailable", "SignInUnavailable", "StoreOutOfMemory", "StoreThrottled", "StoreSignInRefused",
        "SendFailed", "LockLost", "TooLittleTime", "TooManyHolds",
    }  # fmt: skip


def test_a_passing_fault_is_tried_again_within_the_call() -> None:
    client = Client(theirs.ConnectionError("reset"), [b"RENEWED", 5])
    assert run(client) == [b"RENEWED", 5]
    assert client.commands == ["EVALSHA", "closed", "EVALSHA"], "on a new connection"


def test_a_passing_state_of_the_server_is_no_reason_to_connect_again() -> None:
    client = Client(theirs.TryAgainError("Multiple keys request during rehashing of slot"), [b"RENEWED", 5])
    assert run(client) == [b"RENEWED", 5]
    assert client.commands == ["EVALSHA", "EVALSHA"]


def test_a_throttled_sign_in_is_not_repeated_within_the_call() -> None:
    client = Client([b"RENEWED", 5])
    connection = Connection(opening(ResponseError("service is not available"), client))
    with pytest.raises(SignInUnavailable, match="too many clients sign in at once"):
        connection.run(SCRIPT, KEYS, (1, "l", 2))
    assert client.commands == []
    assert connection.run(SCRIPT, KEYS, (1, "l", 2)) == [b"RENEWED", 5]


class SlowClient(Client):
    """Advances the clock by `took_ms` in each command."""

    def __init__(self, *does: Any, clock: ManualClock, took_ms: int) -> None:
        super().__init__(*does)
        self._clock = clock
        self._took_ms = took_ms

    def execute_command(self, command: str, *args: Any) -> Any:
        self._clock.advance(self._took_ms)
        return super().execute_command(command, *args)


@pytest.mark.parametrize(("took_ms", "tries"), [(0, 2), (300, 2), (301, 1)])
def test_who_has_another_way_tries_again_only_what_failed_at_once(took_ms: int, tries: int) -> None:
    late, clock = theirs.TimeoutError("late"), ManualClock()
    client = SlowClient(late, late, clock=clock, took_ms=took_ms)
    connection = Connection(opening(client, client), 2, retry_within_ms=300, clock=clock)
    with pytest.raises(StoreUnavailable):
        connection.run(SCRIPT, KEYS, (1, "l", 2))
    assert client.commands.count("EVALSHA") == tries


def test_the_time_of_a_slow_dial_is_no_reason_not_to_try_again() -> None:
    clock = ManualClock()
    client = Client(theirs.ConnectionError("reset"), [b"LOST"])

    def slowly() -> Any:
        clock.advance(3_000)
        return client

    connection = Connection(slowly, 2, retry_within_ms=300, clock=clock)
    assert connection.run(SCRIPT, KEYS, (1, "l", 2)) == [b"LOST"]


@pytest.mark.parametrize("error", [theirs.OutOfMemoryError("full"), ResponseError("throttled"), ResponseError("a bug")])
def test_what_will_not_pass_in_a_moment_is_not_tried_again(error: Exception) -> None:
    client = Client(error, [b"RENEWED", 5])
    with pytest.raises(StoreError):
        run(client)
    assert len(client.commands) == 1


def test_a_forgotten_script_is_sent_and_its_failure_is_tried_again_too() -> None:
    client = Client(theirs.NoScriptError("No matching script."), theirs.TimeoutError("late"), [b"LOST"])
    assert run(client) == [b"LOST"]
    assert client.commands == ["EVALSHA", "EVAL", "closed", "EVALSHA"]


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_client_that_cannot_be_made_is_tried_as_often_as_said(attempts: int) -> None:
    does = [StoreUnavailable("connect")] * attempts
    connection = Connection(opening(*does, Client([b"LOST"])), attempts)
    with pytest.raises(StoreUnavailable):
        connection.run(SCRIPT, KEYS, (1, "l", 2))
    assert connection.run(SCRIPT, KEYS, (1, "l", 2)) == [b"LOST"], "and is made by the next call"


@pytest.mark.parametrize(
    "answer", [[b"SURPRISE"], [], None, b"RENEWED", 1, [1], [None], [[b"RENEWED"]], [b"\xff"]], ids=repr
)
def test_an_answer_its_header_does_not_name_is_a_bug_with_a_name(answer: Any) -> None:
    with pytest.raises(ScriptInvariantBroken, match="renew_lease returned a word that its header does not name"):
        run(Client(answer))


@pytest.mark.parametrize(
    "error",
    [theirs.ReadOnlyError("You can't write against a read only replica."), theirs.MovedError("1234 127.0.0.1:6379")],
)
def test_a_connection_to_what_is_only_a_replica_now_is_given_up_before_the_next_try(error: Exception) -> None:
    client = Client(error, [b"LOST"])
    assert run(client) == [b"LOST"]
    assert client.commands == ["EVALSHA", "closed", "EVALSHA"]


def test_a_fault_that_the_next_try_healed_is_told_all_the_same() -> None:
    told: list[Exception] = []
    client = Client(theirs.ConnectionError("reset"), [b"LOST"])
    Connection(opening(client, client), swallowed=told.append).run(SCRIPT, KEYS, (1, "l", 2))
    assert [type(error) for error in told] == [StoreUnavailable]


def test_what_a_server_quotes_of_a_command_it_does_not_know_is_not_repeated() -> None:
    answer = ResponseError("unknown command 'AUTH', with args beginning with: 'user' 'the token' ")
    with pytest.raises(ScriptInvariantBroken) as raised:
        run(Client(answer))
    assert "token" not in str(raised.value)


@pytest.mark.parametrize("code", ["BUSY", "NOREPLICAS", "MISCONF", "UNKILLABLE"])
def test_a_passing_state_without_a_class_of_its_own_is_an_unavailable_store(code: str) -> None:
    answer = theirs.ResponseError(f"{code} the server says so")
    with pytest.raises(StoreUnavailable):
        run(Client(answer, answer))
