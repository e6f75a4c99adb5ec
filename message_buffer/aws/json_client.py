"""A client for AWS services that speak JSON, with only those features of the SDK's clients that we use (ADR 0037).

Operations and arguments have the SDK's names: `client.get_item(TableName=…)`. The client repeats a call after the same
failures as the SDK in its retry mode "standard", and after a conflict with a transaction of DynamoDB.
"""

import json
import socket
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cache
from http import HTTPStatus
from http.client import HTTP_PORT, HTTPS_PORT, HTTPConnection, HTTPException
from io import BytesIO
from random import SystemRandom
from select import poll
from ssl import SSLWantReadError
from threading import BoundedSemaphore, Thread
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit
from uuid import uuid4

from message_buffer.aws import environment
from message_buffer.aws.signing import UNRESERVED, Scope, sign
from message_buffer.clock import system_clock
from message_buffer.limits import MAX_IDLE_MS, MIN_SOCKET_SECONDS
from message_buffer.tls import TLS

_random = SystemRandom().random

# At most this many connections are opened at the same time. A function with little memory has little CPU, so more TLS
# handshakes together would exceed the time limit for connecting.
MAX_DIALS_AT_ONCE = 8
_dials = BoundedSemaphore(MAX_DIALS_AT_ONCE)
# After this time, try the next address of the service. The time is longer than a second, because a packet that is lost
# while connecting is sent again after a second.
ADDRESS_SECONDS = 1.2


class Protocol(NamedTuple):
    content_type: str
    target: str
    """The prefix of an operation's name in the header `X-Amz-Target`."""


# The name of a service in AWS addresses -> the service's protocol. A call to Lambda names the operation in its path, so
# Lambda has no target.
PROTOCOLS = {
    "dynamodb": Protocol("application/x-amz-json-1.0", "DynamoDB_20120810."),
    "events": Protocol("application/x-amz-json-1.1", "AWSEvents."),
    "lambda": Protocol("application/json", ""),
    "secretsmanager": Protocol("application/x-amz-json-1.1", "secretsmanager."),
    "sqs": Protocol("application/x-amz-json-1.0", "AmazonSQS."),
}
# The beginning of a region's name -> the end of the region's addresses, if the region is outside AWS's main partition.
SUFFIXES = {
    "cn-": "amazonaws.com.cn", "eusc-": "amazonaws.eu", "us-iso-": "c2s.ic.gov", "us-isob-": "sc2s.sgov.gov",
    "us-isof-": "csp.hci.ic.gov", "eu-isoe-": "cloud.adc-e.uk",
}  # fmt: skip
# Repeat a call that the service refused with one of these codes, or with the status 429 or 5xx.
PASSING = {
    "BandwidthLimitExceeded", "LimitExceededException", "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException", "RequestLimitExceeded", "RequestTimeout", "RequestTimeoutException",
    "SlowDown", "TooManyRequestsException", "TransactionInProgressException",
}  # fmt: skip
# While a transaction writes an item, which takes milliseconds, DynamoDB refuses other writes to the item. Repeat such a
# write, even if the caller allows only one attempt. The pauses double, and take at most 0.6 s together.
MAX_CONFLICTS = 4
FIRST_CONFLICT_PAUSE_SECONDS = 0.04
PASSING_REASONS = {"None", "TransactionConflict", "ThrottlingError"}


class AwsRefused(Exception):
    """Raised if the service refused a call. `code` is the service's error code, `response` the decoded body."""

    def __init__(self, code: str, response: Mapping[str, Any]) -> None:
        super().__init__(code)
        self.code = code
        self.response = response


@cache
def refusal(code: str) -> type[AwsRefused]:
    """Return the subclass of AwsRefused for this code."""
    return type(code, (AwsRefused,), {})


class Exceptions:
    """Has the subclasses of AwsRefused as attributes: `client.exceptions.ConditionalCheckFailedException`."""

    def __getattr__(self, code: str) -> type[AwsRefused]:
        return refusal(code)


class _LostWhileIdle(Exception):
    """Raised if a connection that was used before is lost before the first byte of the response."""


class AwsResponse(NamedTuple):
    status: int
    error_type: str | None
    body: bytes


class JsonClient:
    """A client of one service, which threads may share. No two calls share a connection at the same time."""

    exceptions = Exceptions()

    def __init__(
        self, service: str, *, connect_seconds: float, response_seconds: float, attempts: int, kept: int
    ) -> None:
        region = environment.read_region()
        if region is None:
            raise AwsRefused("NoRegion", {})
        suffix = next((suffix for start, suffix in SUFFIXES.items() if region.startswith(start)), "amazonaws.com")
        address = urlsplit(environment.read_endpoint_url() or f"https://{service}.{region}.{suffix}")
        self._protocol = PROTOCOLS[service]
        self._scope = Scope(region, service)
        self._is_tls = address.scheme == "https"
        self._host, self._netloc = address.hostname or "", address.netloc
        self._port = address.port or (HTTPS_PORT if self._is_tls else HTTP_PORT)
        self._connect_seconds, self._response_seconds = connect_seconds, response_seconds
        self._attempts, self._kept = attempts, kept
        self._idle: list[tuple[HTTPConnection, int]] = []
        """The idle connections, each with the time since which it is idle."""

    def __getattr__(self, name: str) -> Callable[..., dict[str, Any]]:
        """Return the function that calls an operation: `get_item` calls GetItem."""
        if name.startswith("_"):
            raise AttributeError(name)
        operation = "".join(word.capitalize() for word in name.split("_"))
        return lambda **request: self._call(operation, request)

    def invoke(self, *, FunctionName: str, Payload: bytes, InvocationType: str = "RequestResponse") -> dict[str, Any]:  # noqa: N803 - the SDK's names
        path = f"/2015-03-31/functions/{quote(FunctionName, safe=UNRESERVED)}/invocations"
        response = self._ask(path, {"x-amz-invocation-type": InvocationType}, Payload)
        return {"StatusCode": response.status, "Payload": BytesIO(response.body)}

    def connect(self) -> None:
        """Open a connection, so that the next call need not wait for one."""
        self._keep(self._dialled())

    def _call(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        if operation == "TransactWriteItems":
            # Because of this token, DynamoDB writes only once even if the client repeats the call.
            request = {"ClientRequestToken": str(uuid4()), **request}
        body = json.dumps(request, default=_base64, separators=(",", ":")).encode()
        response = self._ask("/", {"x-amz-target": f"{self._protocol.target}{operation}"}, body)
        decode = _bytes if self._scope.service == "dynamodb" else None
        try:
            found: dict[str, Any] = json.loads(response.body or b"{}", object_hook=decode)
        except ValueError as error:
            raise HTTPException(f"the response to {operation} is not JSON") from error
        return found

    def _ask(self, path: str, headers: Mapping[str, str], body: bytes) -> AwsResponse:
        """Return the response. Raise AwsRefused if the service refuses, or the last error if no response comes."""
        attempt, conflicts, reuse = 1, 0, True
        while True:
            try:
                response = self._ask_once(path, headers, body, reuse=reuse)
                if response.status < HTTPStatus.MULTIPLE_CHOICES:
                    return response
                refused = _refused(response)
                if conflicts < MAX_CONFLICTS and _is_conflict(refused):
                    time.sleep(_random() * FIRST_CONFLICT_PAUSE_SECONDS * 2**conflicts)
                    conflicts += 1
                    continue
                if attempt >= self._attempts or not _passes(response.status, refused.code):
                    raise refused
            except _LostWhileIdle:
                # While the instance was suspended, the network may have dropped all idle connections. The service has
                # probably not got the request, so do not count this as an attempt.
                self._drop_idle()
                reuse = False
                continue
            except (OSError, HTTPException):
                # Close the other idle connections, too, because the network may have dropped all of them while the
                # instance was suspended.
                self._drop_idle()
                if attempt >= self._attempts:
                    raise
            time.sleep(_random() * 2 ** (attempt - 1))
            attempt += 1

    def _ask_once(self, path: str, headers: Mapping[str, str], body: bytes, *, reuse: bool) -> AwsResponse:
        to_sign = {"host": self._netloc, "content-type": self._protocol.content_type, **headers}
        signed = sign("POST", path, to_sign, body, scope=self._scope)
        if trace_id := environment.read_trace_id():
            signed["x-amzn-trace-id"] = quote(trace_id, safe="-=;:+&[]{}\"',")
        idle = self._idle_connection() if reuse else None
        connection = idle or self._dialled()
        try:
            try:
                connection.request("POST", path, body, signed)
                received = connection.getresponse()
            except OSError as error:
                if idle is None or isinstance(error, TimeoutError):
                    raise
                raise _LostWhileIdle from error
            response = AwsResponse(received.status, received.getheader("x-amzn-errortype"), received.read())
        except BaseException:
            connection.close()
            raise
        if received.will_close:
            connection.close()
        else:
            self._keep(connection)
        return response

    def _idle_connection(self) -> HTTPConnection | None:
        """Return a connection that was idle for a short time only, and that the service has not closed, or None."""
        while self._idle:
            try:
                connection, since_ms = self._idle.pop()
            except IndexError:  # another thread was quicker
                break
            if 0 <= system_clock() - since_ms <= MAX_IDLE_MS and not _has_ended(connection.sock):
                return connection
            connection.close()
        return None

    def _dialled(self) -> HTTPConnection:
        """Return a new connection. Raise TimeoutError if DNS, TCP and TLS take longer than `connect_seconds`."""
        ends_at = time.monotonic() + self._connect_seconds
        if not _dials.acquire(timeout=self._connect_seconds):
            raise TimeoutError("too many connections are being opened")
        connection = HTTPConnection(self._host, self._port)
        try:
            connection.sock = _connected(self._host, self._port, ends_at=ends_at)
            if self._is_tls:
                connection.sock.settimeout(_seconds_until(ends_at))
                connection.sock = TLS.wrap_socket(connection.sock, server_hostname=self._host)
            connection.sock.settimeout(self._response_seconds)
        except BaseException:
            connection.close()
            raise
        finally:
            _dials.release()
        return connection

    def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def _keep(self, connection: HTTPConnection) -> None:
        if len(self._idle) < self._kept:
            self._idle.append((connection, system_clock()))
        else:
            connection.close()


def _connected(host: str, port: int, *, ends_at: float) -> socket.socket:
    """Return a socket that is connected to one of the host's addresses, which are tried in turn until `ends_at`."""
    found: Future[list[Any]] = Future()

    def look_up() -> None:
        try:
            found.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            found.set_exception(error)

    # Look the name up in a thread, because a look-up has no time-out. A thread that hangs must not keep the process
    # alive.
    Thread(target=look_up, name="look-up", daemon=True).start()
    failure: OSError = TimeoutError("the name of the service was not found in time")
    for family, kind, protocol, _, address in found.result(_seconds_until(ends_at)):
        if time.monotonic() >= ends_at:
            break
        connected = socket.socket(family, kind, protocol)
        try:
            connected.settimeout(min(_seconds_until(ends_at), ADDRESS_SECONDS))
            connected.connect(address)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            connected.close()
            failure = error
        else:
            return connected
    raise failure


def _seconds_until(ends_at: float) -> float:
    return max(ends_at - time.monotonic(), MIN_SOCKET_SECONDS)


def _has_ended(connected: socket.socket) -> bool:
    """Return whether the service has closed an idle connection. Unread input does not prove it, because TLS 1.3 sends
    session tickets after the handshake."""
    poller = poll()
    poller.register(connected, 1)
    if not poller.poll(0):
        return False
    patience = connected.gettimeout()
    connected.settimeout(0)
    try:
        connected.recv(1)
    except (BlockingIOError, SSLWantReadError):
        return False
    except OSError:
        return True
    finally:
        connected.settimeout(patience)
    # The socket has reached the end of the connection, or has data that answers no request. Do not use the connection.
    return True


def _refused(response: AwsResponse) -> AwsRefused:
    try:
        found = json.loads(response.body, object_hook=_bytes)
    except ValueError:
        found = {}
    fields = found if isinstance(found, dict) else {}
    # An error type may read "com.amazon.coral.service#SlowDown:http://…". The code in it is SlowDown.
    named = response.error_type or fields.get("__type") or fields.get("code") or response.status
    code = str(named).partition(":")[0].rpartition("#")[2]
    return refusal(code)(code, fields)


def _passes(status: int, code: str) -> bool:
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        return True
    return "Throttl" in code or code in PASSING


def _is_conflict(refused: AwsRefused) -> bool:
    reasons = {reason.get("Code") for reason in refused.response.get("CancellationReasons", ())}
    return refused.code == "TransactionConflictException" or bool(reasons and reasons <= PASSING_REASONS)


def _base64(value: object) -> str:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise TypeError(f"a request cannot contain a {type(value).__name__}")


def _bytes(value: dict[str, Any]) -> dict[str, Any]:
    """Decode a DynamoDB value if it is binary: an object whose only key is `B`, with a string as its value."""
    return {"B": b64decode(value["B"])} if len(value) == 1 and isinstance(value.get("B"), str) else value
