"""The requests that the functions send to AWS, and the errors that its refusals become."""

import socket
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import botocore.session
import pytest
from botocore.response import StreamingBody
from botocore.stub import Stubber

from message_buffer.aws import clients as aws
from message_buffer.aws.functions import Functions
from message_buffer.aws.object_store import ObjectStore
from message_buffer.aws.secrets import Secrets
from message_buffer.errors import SendFailed
from message_buffer.events.dead_letters import DeadLetterQueue
from message_buffer.events.event_bus import EventBus, entry_bytes
from message_buffer.limits import MAX_CALL_MS


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    made = aws._made
    made.cache_clear()
    yield
    made.cache_clear()


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Stubber]:
    def stubbed(service: str) -> Stubber:
        client = botocore.session.Session().create_client(service)
        stubber = Stubber(client)
        stubber.activate()
        monkeypatch.setattr(aws, "_made", lambda name, *_: {service: client}[name])
        return stubber

    return stubbed


def test_a_function_is_started_without_waiting_for_it(stub: Callable[[str], Stubber]) -> None:
    stubber = stub("lambda")
    sent = {"FunctionName": "f", "InvocationType": "Event", "Payload": b'{"shard":3}'}
    stubber.add_response("invoke", {"StatusCode": 202}, sent)
    Functions().start("f", {"shard": 3})
    stubber.assert_no_pending_responses()


def test_a_function_that_is_called_answers(stub: Callable[[str], Stubber]) -> None:
    stubber = stub("lambda")
    stubber.add_response("invoke", {"Payload": _stream(b'{"n":1}')}, {"FunctionName": "f", "Payload": b'{"shard":3}'})
    stubber.add_response("invoke", {"Payload": _stream(b"null")})
    assert Functions().call("f", {"shard": 3}, response_seconds=1) == {"n": 1}
    assert Functions().call("f", {}, response_seconds=1) == {}


def test_letters_are_received_hidden_and_given_back(stub: Callable[[str], Stubber]) -> None:
    stubber, queue = stub("sqs"), DeadLetterQueue("https://q")
    asked = {"QueueUrl": "https://q", "MaxNumberOfMessages": 10, "VisibilityTimeout": 90, "WaitTimeSeconds": 1}
    given_up = {"MessageAttributes": {"reason": {"DataType": "String", "StringValue": "401"}}}
    found = {"Messages": [{"ReceiptHandle": "r1", "Body": "b"}, {"ReceiptHandle": "r2", "Body": "b", **given_up}]}
    stubber.add_response("receive_message", found, asked | {"MessageAttributeNames": ["reason"]})
    letters = queue.receive(hidden_seconds=90)
    assert letters == [("r1", "b", None), ("r2", "b", "401")]
    for name in ("r1", "r2"):
        given_back = {"QueueUrl": "https://q", "ReceiptHandle": name, "VisibilityTimeout": 0}
        stubber.add_response("change_message_visibility", {}, given_back)
    queue.give_back(letters)
    stubber.assert_no_pending_responses()


def test_letters_that_somebody_looks_at_count_too(stub: Callable[[str], Stubber]) -> None:
    stub("sqs").add_response(
        "get_queue_attributes",
        {"Attributes": {"ApproximateNumberOfMessages": "2", "ApproximateNumberOfMessagesNotVisible": "1"}},
    )
    assert DeadLetterQueue("https://q").count() == 3


def test_many_events_go_out_in_few_calls(stub: Callable[[str], Stubber]) -> None:
    stubber = stub("events")
    details = [*(f'"{n}"' for n in range(11)), '"' + "x" * 200_000 + '"', '"' + "y" * 100_000 + '"']
    for call in (details[:10], details[10:12], details[12:]):
        entries = [
            {"EventBusName": "bus", "Source": "message-buffer", "DetailType": "t", "Detail": detail} for detail in call
        ]
        stubber.add_response("put_events", {"FailedEntryCount": 0, "Entries": []}, {"Entries": entries})
    EventBus("bus").publish_all("t", details)
    EventBus("bus").publish_all("t", [])
    stubber.assert_no_pending_responses()


def test_one_failed_entry_among_many_is_a_failure(stub: Callable[[str], Stubber]) -> None:
    answer = {"FailedEntryCount": 1, "Entries": [{"EventId": "1"}, {"ErrorCode": "InternalFailure"}]}
    stub("events").add_response("put_events", answer)
    with pytest.raises(SendFailed, match=r"^put event: InternalFailure$"):
        EventBus("bus").publish_all("t", ["1", "2"])


def test_a_call_ends_in_its_time_though_none_of_eight_addresses_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    class BlackHole(socket.socket):
        def connect(self, _address: Any) -> None:
            waited.append(self.gettimeout() or 0)
            raise TimeoutError

    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (f"192.0.2.{n}", 443)) for n in range(1, 9)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_kwargs: found)
    monkeypatch.setattr(socket, "socket", BlackHole)
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(time, "monotonic", lambda: sum(waited))
    with pytest.raises(SendFailed, match=r"^put event: TimeoutError$"):
        EventBus("bus").publish("t", "{}")
    assert len(waited) == 5, "twice two addresses, and a pause between"
    assert sum(waited) * 1_000 <= MAX_CALL_MS


def test_objects_are_kept_and_found(stub: Callable[[str], Stubber]) -> None:
    stubber = stub("s3")
    stubber.add_response("put_object", {}, {"Bucket": "b", "Key": "k", "Body": b"x", "ContentType": "application/json"})
    stubber.add_response("get_object", {"Body": StreamingBody(BytesIO(b"x"), 1)}, {"Bucket": "b", "Key": "k"})
    ObjectStore("b").put("k", b"x")
    assert ObjectStore("b").get("k") == b"x"


def _stream(body: bytes) -> StreamingBody:
    return StreamingBody(BytesIO(body), len(body))


def test_a_secret_is_read(stub: Callable[[str], Stubber]) -> None:
    stub("secretsmanager").add_response("get_secret_value", {"SecretString": "{}"}, {"SecretId": "id"})
    assert Secrets().read("id") == "{}"


def test_an_entry_counts_with_its_envelope() -> None:
    assert entry_bytes("t", "ü".encode()) == len("message-buffer") + 1 + 2 + 14


def test_a_refusal_is_ours_and_does_not_quote_what_was_sent(stub: Callable[[str], Stubber]) -> None:
    stub("sqs").add_client_error("send_message", "InvalidMessageContents", "bad: what a customer wrote")
    with pytest.raises(SendFailed, match=r"^send dead letter: InvalidMessageContents$"):
        DeadLetterQueue("https://q").put("what a customer wrote")


def test_no_answer_is_ours_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(SendFailed, match=r"^read secret: ConnectionRefusedError$"):
        Secrets().read("id")
