"""Our client of AWS's JSON services writes and signs requests as the SDK does. A local server answers them."""

import json
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from select import select
from typing import Any

import botocore.session
import pytest
import trustme
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from message_buffer.aws import clients as aws
from message_buffer.aws import json_client, signing
from message_buffer.aws.cache_token import sign_cache_token
from message_buffer.aws.json_client import JsonClient
from message_buffer.errors import SendFailed
from message_buffer.limits import MAX_IDLE_MS
from message_buffer.settings import IamAccess
from tests.support.web_server import RESET, SLOW, Request, WebServer, web_server

NOW_MS = 1_700_000_000_000
KEYS = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "sec/ret+", "AWS_SESSION_TOKEN": "to/ken=="}
KEY = {"id": {"S": "ü"}, "bytes": {"B": b"\x00\xff"}}
# Every operation that the functions call, with arguments that our client could encode otherwise than the SDK.
CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("dynamodb", "get_item", {"TableName": "t", "Key": KEY, "ConsistentRead": True}),
    ("dynamodb", "put_item", {"TableName": "t", "Item": {**KEY, "l": {"L": [{"N": "1"}, {"M": {"B": {"S": "x"}}}]}}}),
    ("dynamodb", "update_item", {"TableName": "t", "Key": KEY, "UpdateExpression": "SET a = :a",
                                 "ExpressionAttributeValues": {":a": {"B": b"x"}}}),
    ("dynamodb", "transact_write_items", {"TransactItems": [{"Put": {"TableName": "t", "Item": KEY}}]}),
    ("dynamodb", "query", {"TableName": "t", "Limit": 3, "ScanIndexForward": False}),
    ("dynamodb", "scan", {"TableName": "t", "ConsistentRead": True}),
    ("dynamodb", "batch_get_item", {"RequestItems": {"t": {"Keys": [KEY]}}}),
    ("dynamodb", "batch_write_item", {"RequestItems": {"t": [{"PutRequest": {"Item": KEY}}]}}),
    ("events", "put_events", {"Entries": [{"EventBusName": "b", "DetailType": "t", "Detail": '{"ü":1}'}]}),
    ("secretsmanager", "get_secret_value", {"SecretId": "arn:aws:secretsmanager:us-east-1:1:secret:a"}),
    ("sqs", "send_message", {"QueueUrl": "https://q/1/n", "MessageBody": "b", "DelaySeconds": 3}),
    ("sqs", "receive_message", {"QueueUrl": "https://q/1/n", "MaxNumberOfMessages": 10, "WaitTimeSeconds": 1}),
    ("sqs", "change_message_visibility", {"QueueUrl": "https://q/1/n", "ReceiptHandle": "r", "VisibilityTimeout": 0}),
    ("sqs", "delete_message", {"QueueUrl": "https://q/1/n", "ReceiptHandle": "r"}),
    ("sqs", "get_queue_attributes", {"QueueUrl": "https://q/1/n", "AttributeNames": ["All"]}),
    ("lambda", "invoke", {"FunctionName": "f", "InvocationType": "Event", "Payload": b'{"shard":3}'}),
    ("lambda", "invoke", {"FunctionName": "arn:aws:lambda:us-east-1:1:function:f", "Payload": b"{}"}),
]  # fmt: skip
# Refusals that users of AWS recorded and published; `recorded` names where. No account of ours was asked.
REFUSALS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "fixtures" / "aws_refusals.json").read_text("utf-8"))


@pytest.fixture
def server() -> Iterator[WebServer]:
    with web_server() as server:
        yield server


@pytest.fixture(autouse=True)
def environment(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    of_the_sdk = {"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    for name, value in {**KEYS, **of_the_sdk, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": server.url}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    made: list[JsonClient] = []

    def recorded(service: str, **options: Any) -> JsonClient:
        made.append(JsonClient(service, **options))
        return made[-1]

    monkeypatch.setattr(aws, "JsonClient", recorded)
    aws._made.cache_clear()
    yield
    aws._made.cache_clear()
    for connection in {connection for client in made for connection, _ in client._idle}:
        connection.close()


def headers_of(request: Request) -> dict[str, str]:
    return {name.lower(): value for name, value in request.headers.items()}


@pytest.mark.parametrize(("service", "operation", "arguments"), CALLS)
def test_a_request_is_the_sdks(server: WebServer, service: str, operation: str, arguments: dict[str, Any]) -> None:
    sdk = botocore.session.Session().create_client(service, region_name="us-east-1", endpoint_url=server.url)
    getattr(sdk, operation)(**arguments)
    sdk.close()
    getattr(aws.client(service), operation)(**arguments)
    theirs, ours = server.requests
    assert ours.path == theirs.path
    sent, wanted = ours.json, theirs.json
    for body in (sent, wanted):
        body.pop("ClientRequestToken", None)
    assert sent == wanted
    for name in ("x-amz-target", "content-type", "x-amz-invocation-type", "x-amz-security-token"):
        # Compare only headers that the SDK sends. To Lambda it sends no content type and no default invocation type.
        if name in headers_of(theirs):
            assert headers_of(ours)[name] == headers_of(theirs)[name]


@pytest.mark.parametrize(("service", "operation", "arguments"), {call[0]: call for call in CALLS}.values())
@pytest.mark.parametrize("token", [None, KEYS["AWS_SESSION_TOKEN"]])
def test_the_sdk_signs_the_request_in_the_same_way(
    server: WebServer,
    monkeypatch: pytest.MonkeyPatch,
    service: str,
    operation: str,
    arguments: dict[str, Any],
    token: str | None,
) -> None:
    if token is None:
        monkeypatch.delenv("AWS_SESSION_TOKEN")
    getattr(aws.client(service), operation)(**arguments)
    (sent,) = server.requests
    headers = headers_of(sent)
    signed = headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert {"host", "x-amz-date", "content-type"} <= set(signed)
    request = AWSRequest(
        "POST", f"{server.url}{sent.path}", {name: headers[name] for name in signed if name != "host"}, sent.body
    )
    request.context["timestamp"] = headers["x-amz-date"]
    auth = SigV4Auth(Credentials(KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"], token), service, "us-east-1")
    signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    assert headers["authorization"].endswith(f", Signature={signature}")
    assert f"Credential={KEYS['AWS_ACCESS_KEY_ID']}/{auth.credential_scope(request)}," in headers["authorization"]


@pytest.mark.parametrize("token", [None, KEYS["AWS_SESSION_TOKEN"]])
def test_the_sdk_signs_a_cache_token_in_the_same_way(monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    if token is None:
        monkeypatch.delenv("AWS_SESSION_TOKEN")
    monkeypatch.setattr(signing, "system_clock", lambda: NOW_MS)
    monkeypatch.setattr(
        "botocore.auth.get_current_datetime", lambda: datetime.fromtimestamp(NOW_MS // 1_000, UTC).replace(tzinfo=None)
    )
    credentials = Credentials(KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"], token)
    url = "https://cache/?Action=connect&User=user&ResourceType=ServerlessCache"
    request = AWSRequest("GET", url)
    SigV4QueryAuth(credentials, "elasticache", "eu-central-1", expires=900).add_auth(request)
    wanted = request.url.removeprefix("https://cache/?").split("&")
    found = sign_cache_token(IamAccess("user", "cache", "eu-central-1")).removeprefix("cache/?").split("&")
    assert sorted(found) == sorted(wanted)


def test_bytes_of_an_item_come_back_as_bytes(server: WebServer) -> None:
    binary = {"B": b64encode(b"\x00\xff").decode()}
    server.answer = (200, {"Item": {"a": binary, "m": {"M": {"B": {"S": "x"}}}, "l": {"L": [binary]}}})
    item = aws.client("dynamodb").get_item(TableName="t", Key=KEY)["Item"]
    assert item == {"a": {"B": b"\x00\xff"}, "m": {"M": {"B": {"S": "x"}}}, "l": {"L": [{"B": b"\x00\xff"}]}}


@pytest.mark.parametrize(
    "code", ["ConditionalCheckFailedException", "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException"]
)
def test_a_refusal_has_the_class_of_its_code_and_the_services_answer(server: WebServer, code: str) -> None:
    server.answer = (400, {"__type": code, "Item": {"a": {"B": b64encode(b"x").decode()}}})
    client = aws.client("dynamodb")
    with pytest.raises(client.exceptions.ConditionalCheckFailedException) as found:
        client.put_item(TableName="t", Item=KEY)
    assert found.value.response["Item"] == {"a": {"B": b"x"}}
    with pytest.raises(SendFailed, match=r"^put: ConditionalCheckFailedException$"), aws.errors_as_ours("put"):
        client.put_item(TableName="t", Item=KEY)
    assert len(server.requests) == 2, "such a refusal is not tried again"


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_of_aws_is_understood_and_repeated_as_the_sdk_does(server: WebServer, name: str) -> None:
    refusal = REFUSALS[name]
    service, operation = refusal["service"], refusal["operation"]
    arguments = next(arguments for *called, arguments in CALLS if called == [service, operation])
    server.answer = (refusal["status"], refusal["body"].encode(), refusal["headers"])
    with pytest.raises(SendFailed, match=f"^ask: {refusal['code']}$"), aws.errors_as_ours("ask"):
        getattr(aws.client(service), operation)(**arguments)
    assert len(server.requests) == refusal["attempts"]

    again = Config(retries={"mode": "standard", "total_max_attempts": aws.AWS_ATTEMPTS})
    sdk = botocore.session.Session().create_client(
        service, region_name="us-east-1", endpoint_url=server.url, config=again
    )
    with pytest.raises(ClientError) as found:
        getattr(sdk, operation)(**arguments)
    sdk.close()
    assert len(server.requests) == 2 * refusal["attempts"]
    # For SQS the SDK returns the code of an earlier protocol. None of our code looks at a code of SQS.
    earlier = refusal["headers"].get("x-amzn-query-error", "").partition(";")[0]
    assert found.value.response["Error"]["Code"] == (earlier or refusal["code"])


def answers(*given: Any) -> Callable[[Request], Any]:
    left = iter(given)
    return lambda _request: next(left)


@pytest.mark.parametrize(
    "failure",
    [
        (503, b"down"),
        (429, {}),
        (400, {"__type": "ThrottlingException"}),
        (400, {"__type": "RequestLimitExceeded"}),
        RESET,
    ],
)
def test_what_may_pass_is_tried_twice(server: WebServer, failure: Any) -> None:
    server.answer = answers(failure, (200, {"SecretString": "s"}))
    assert aws.client("secretsmanager").get_secret_value(SecretId="s") == {"SecretString": "s"}
    server.answer = failure
    with pytest.raises(SendFailed), aws.errors_as_ours("read"):
        aws.client("secretsmanager").get_secret_value(SecretId="s")
    # The first call has left a connection. Its loss is no attempt, as it may have been lost while it was idle.
    tried = 5 if failure == RESET else 4
    assert len(server.requests) == tried
    with pytest.raises(SendFailed), aws.errors_as_ours("read"):
        aws.client("secretsmanager", patience=aws.HURRIED).get_secret_value(SecretId="s")
    assert len(server.requests) == tried + 1


CONFLICT = {"__type": "TransactionConflictException"}


def cancelled(*codes: str) -> dict[str, Any]:
    return {"__type": "TransactionCanceledException", "CancellationReasons": [{"Code": code} for code in codes]}


@pytest.mark.parametrize("patience", [aws.PATIENT, aws.HURRIED])
@pytest.mark.parametrize("conflict", [CONFLICT, cancelled("None", "TransactionConflict", "ThrottlingError")])
def test_a_conflict_with_a_transaction_is_repeated_even_for_a_caller_with_one_attempt(
    server: WebServer, conflict: dict[str, Any], patience: aws.Patience
) -> None:
    server.answer = answers(*[(400, conflict)] * json_client.MAX_CONFLICTS, (200, {}))
    client = aws.client("dynamodb", patience=patience)
    client.transact_write_items(TransactItems=[])
    assert len({request.json["ClientRequestToken"] for request in server.requests}) == 1
    server.answer = (400, conflict)
    with pytest.raises(json_client.AwsRefused, match=conflict["__type"]):
        client.transact_write_items(TransactItems=[])
    assert len(server.requests) == 2 * (json_client.MAX_CONFLICTS + 1), "the repeats are bounded"


@pytest.mark.parametrize("codes", [["TransactionConflict", "ConditionalCheckFailed"], ["ValidationError"], []])
def test_a_transaction_that_was_cancelled_for_another_reason_is_not_repeated(
    server: WebServer, codes: list[str]
) -> None:
    server.answer = (400, cancelled(*codes))
    client = aws.client("dynamodb")
    with pytest.raises(client.exceptions.TransactionCanceledException):
        client.transact_write_items(TransactItems=[])
    assert len(server.requests) == 1


def test_an_answer_that_does_not_come_ends_the_call(server: WebServer) -> None:
    server.answer = SLOW
    impatient = aws.Patience(1.0, 0.05, attempts=1)
    with pytest.raises(SendFailed, match=r"^ask: TimeoutError$"), aws.errors_as_ours("ask"):
        aws.client("events", patience=impatient).put_events(Entries=[])


def test_an_answer_that_is_not_json_is_a_failure(server: WebServer) -> None:
    server.answer = (200, b"<html>")
    with pytest.raises(SendFailed, match=r"^ask: HTTPException$"), aws.errors_as_ours("ask"):
        aws.client("events").put_events(Entries=[])


def test_a_connection_that_was_opened_ahead_is_used_though_tls_has_sent_tickets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    authority, theirs, ours = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    authority.configure_trust(ours)
    monkeypatch.setattr(json_client, "TLS", ours)
    with web_server(theirs) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        client = aws.client("events")
        client.connect()
        line = client._idle[0][0].sock
        opened = line.getsockname()[1]
        assert line.version() == "TLSv1.3"
        # With TLS 1.3 the server sends session tickets after the handshake, so the idle connection has unread bytes.
        assert select([line], [], [], 30)[0]
        client.put_events(Entries=[])
        # The client does not use an idle connection that the service has closed.
        client._idle[0][0].sock.shutdown(2)
        aws.client("events", patience=aws.HURRIED)._idle.extend(client._idle)
        aws.client("events", patience=aws.HURRIED).put_events(Entries=[])
        ports = [request.port for request in server.requests]
    assert ports[0] == opened
    assert ports[1] != opened


def test_a_connection_that_was_idle_for_long_is_not_used_again(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The instance was suspended, and the network has forgotten the connection without a word to either side.
    now = [NOW_MS]
    monkeypatch.setattr(json_client, "system_clock", lambda: now[0])
    client = aws.client("events", patience=aws.HURRIED)
    ports = []
    for passed_ms in (0, MAX_IDLE_MS, MAX_IDLE_MS + 1, -1):
        now[0] += passed_ms
        client.put_events(Entries=[])
        ports.append(server.requests[-1].port)
    assert ports[0] == ports[1]
    assert len(set(ports)) == 3


def test_a_reset_of_an_idle_connection_is_no_attempt(server: WebServer) -> None:
    client = aws.client("events", patience=aws.HURRIED)
    client.put_events(Entries=[])
    used = server.requests[-1].port
    server.answer = lambda request: RESET if request.port == used else (200, {})
    client.put_events(Entries=[])
    # On a new connection, the loss is the service's failure, and counts.
    server.answer = RESET
    with pytest.raises(ConnectionError):
        client.put_events(Entries=[])
    assert len(server.requests) == 5


def test_a_slow_response_on_an_idle_connection_is_an_attempt(server: WebServer) -> None:
    client = aws.client("events", patience=aws.Patience(1.0, 0.05, attempts=1))
    client.put_events(Entries=[])
    server.answer = SLOW
    with pytest.raises(TimeoutError):
        client.put_events(Entries=[])
    assert len(server.requests) == 2


def test_a_name_that_is_looked_up_for_too_long_ends_the_dial(monkeypatch: pytest.MonkeyPatch) -> None:
    tested = threading.Event()

    def look_up(*_args: Any, **_options: Any) -> list[Any]:
        tested.wait(5)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    client = JsonClient("events", connect_seconds=0.1, response_seconds=1, attempts=1, kept=1)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        client.connect()
    tested.set()
    assert time.monotonic() - began < 2


def test_lambda_can_count_loops_by_the_trace(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_X_AMZN_TRACE_ID", "Root=1-5759e988;Lineage=a:1")
    aws.client("lambda").invoke(FunctionName="f", Payload=b"{}", InvocationType="Event")
    assert headers_of(server.requests[0])["x-amzn-trace-id"] == "Root=1-5759e988;Lineage=a:1"


# One region of each partition of AWS.
@pytest.mark.parametrize(
    "region",
    ["eu-west-1", "us-gov-west-1", "cn-north-1", "eusc-de-east-1", "us-iso-east-1", "us-isob-east-1", "us-isof-east-1",
     "eu-isoe-west-1"],
)  # fmt: skip
def test_a_service_has_the_sdks_address(monkeypatch: pytest.MonkeyPatch, region: str) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_REGION", region)
    sdk = botocore.session.Session().create_client("events", region_name=region)
    assert f"https://{aws.client('events')._host}" == sdk.meta.endpoint_url


def test_without_credentials_in_the_environment_no_request_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(SendFailed, match="no AWS credentials"):
        aws.client("events").put_events(Entries=[])


def test_a_refusal_of_the_sdks_clients_is_ours_too() -> None:
    refused = ClientError({"Error": {"Code": "NoSuchKey", "Message": "what a customer wrote"}}, "GetObject")
    with pytest.raises(SendFailed, match=r"^get: NoSuchKey$"), aws.errors_as_ours("get"):
        raise refused


def test_threads_have_connections_of_their_own_of_which_some_are_kept(server: WebServer) -> None:
    together = threading.Barrier(4)

    def answer(_request: Request) -> Any:
        together.wait(10)
        return 200, {}

    server.answer = answer
    client = aws.client("events", connections=2)
    threads = [threading.Thread(target=client.put_events, kwargs={"Entries": []}) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({request.port for request in server.requests}) == 4
    assert len(client._idle) == 2


def test_only_so_many_connections_are_opened_at_once(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, most, counting, leave = 0, 0, threading.Lock(), threading.Event()
    connected = json_client._connected

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal at_once, most
        with counting:
            at_once += 1
            most = max(most, at_once)
            if at_once == json_client.MAX_DIALS_AT_ONCE:
                leave.set()
        leave.wait(10)
        try:
            return connected(*args, **kwargs)
        finally:
            with counting:
                at_once -= 1

    monkeypatch.setattr(json_client, "_connected", counted)
    client = aws.client("events", connections=30, patience=aws.Patience(20.0, 20.0))
    threads = [threading.Thread(target=client.put_events, kwargs={"Entries": []}) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == json_client.MAX_DIALS_AT_ONCE
    assert len(server.requests) == 30


def test_the_sdk_tries_again_after_the_same_refusals(server: WebServer) -> None:
    from botocore.retries.standard import ThrottledRetryableChecker, TransientRetryableChecker  # noqa: PLC0415

    from message_buffer.aws.json_client import _passes  # noqa: PLC0415

    for code in [*ThrottledRetryableChecker._THROTTLED_ERROR_CODES, *TransientRetryableChecker._TRANSIENT_ERROR_CODES]:
        assert _passes(400, code), code
    for status in TransientRetryableChecker._TRANSIENT_STATUS_CODES:
        assert _passes(status, "")
    assert not _passes(400, "ValidationException")


def test_after_a_lost_connection_the_next_try_has_a_new_one(server: WebServer) -> None:
    client = aws.client("events")
    together = threading.Barrier(2)

    def answer_together(_request: Request) -> Any:
        together.wait(10)
        return 200, {}

    server.answer = answer_together
    threads = [threading.Thread(target=client.put_events, kwargs={"Entries": []}) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    old = {request.port for request in server.requests}
    assert len(old) == len(client._idle) == 2
    # The service dropped both connections while the instance was suspended, and the client does not know it yet.
    server.answer = lambda request: RESET if request.port in old else (200, {})
    client.put_events(Entries=[])
    assert server.requests[-1].port not in old
