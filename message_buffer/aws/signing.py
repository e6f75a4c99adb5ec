"""Signs requests to AWS with Signature Version 4, as the SDK does, but without the slow import of the SDK."""

import hmac
from collections.abc import Mapping
from hashlib import sha256
from time import gmtime, strftime
from typing import NamedTuple
from urllib.parse import quote

from message_buffer.aws import environment
from message_buffer.aws.environment import Keys
from message_buffer.clock import system_clock
from message_buffer.errors import SendFailed

ALGORITHM = "AWS4-HMAC-SHA256"
UNRESERVED = "-_.~"


class Scope(NamedTuple):
    region: str
    service: str


def sign(method: str, path: str, headers: Mapping[str, str], body: bytes, *, scope: Scope) -> dict[str, str]:
    """Return `headers`, which must contain `host` and have names in lower case, with the signature's headers added. The
    special characters of `path` must already be escaped."""
    keys, time = _keys(), _now()
    signed = {**headers, "x-amz-date": time, **({"x-amz-security-token": keys.token} if keys.token else {})}
    names = sorted(signed)
    lines = [f"{name}:{signed[name].strip()}" for name in names]
    # Escape the path a second time for the signature, as every service except S3 requires.
    request = [method, quote(path, safe=f"/{UNRESERVED}"), "", *lines, "", ";".join(names), sha256(body).hexdigest()]
    signature = _signature(request, keys, time=time, scope=scope)
    signed["authorization"] = (
        f"{ALGORITHM} Credential={keys.access}/{_scope(time, scope)}, "
        f"SignedHeaders={';'.join(names)}, Signature={signature}"
    )
    return signed


def presign(host: str, query: Mapping[str, str], *, scope: Scope, expires_seconds: int) -> str:
    """Return the address of a GET request with its signature in the query, without `https://`."""
    keys, time = _keys(), _now()
    signed = {
        **query,
        "X-Amz-Algorithm": ALGORITHM,
        "X-Amz-Credential": f"{keys.access}/{_scope(time, scope)}",
        "X-Amz-Date": time,
        "X-Amz-Expires": str(expires_seconds),
        "X-Amz-SignedHeaders": "host",
        **({"X-Amz-Security-Token": keys.token} if keys.token else {}),
    }
    text = "&".join(f"{name}={quote(value, safe=UNRESERVED)}" for name, value in sorted(signed.items()))
    request = ["GET", "/", text, f"host:{host}", "", "host", sha256(b"").hexdigest()]
    return f"{host}/?{text}&X-Amz-Signature={_signature(request, keys, time=time, scope=scope)}"


def _keys() -> Keys:
    keys = environment.read_keys()
    if keys is None:
        raise SendFailed("the environment has no AWS credentials")
    return keys


def _now() -> str:
    return strftime("%Y%m%dT%H%M%SZ", gmtime(system_clock() // 1_000))


def _scope(time: str, scope: Scope) -> str:
    return f"{time[:8]}/{scope.region}/{scope.service}/aws4_request"


def _signature(request: list[str], keys: Keys, *, time: str, scope: Scope) -> str:
    digest = sha256("\n".join(request).encode()).hexdigest()
    key = f"AWS4{keys.secret}".encode()
    for part in (time[:8], scope.region, scope.service, "aws4_request"):
        key = _hmac(key, part)
    return _hmac(key, "\n".join([ALGORITHM, time, _scope(time, scope), digest])).hex()


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
