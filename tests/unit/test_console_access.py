"""Only the console's own page may call its server."""

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tests.support.asgi import Answer, call
from tools.console.access import MAX_BODY_BYTES, Access

TOKEN, PORT = "t0ken", 4711
HOST, ORIGIN = f"127.0.0.1:{PORT}", f"http://127.0.0.1:{PORT}"
OURS = {"Host": HOST, "Origin": ORIGIN, "Content-Type": "application/json", "Content-Length": "2"}


async def answer(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{request.method} {request.url.path}")


APP = Access(Starlette(routes=[Route("/api/act", answer, methods=["GET", "POST"])]), token=TOKEN, port=PORT)


def post(**changed: str | None) -> Answer:
    headers = OURS | {name.replace("_", "-"): value for name, value in changed.items()}
    return call(APP, "POST", f"/{TOKEN}/api/act", headers={k: v for k, v in headers.items() if v is not None})


def test_a_request_of_the_page_reaches_the_application_without_the_token() -> None:
    assert post().body == b"POST /api/act"


def test_a_read_without_an_origin_is_answered_as_browsers_send_none_then() -> None:
    assert call(APP, "GET", f"/{TOKEN}/api/act", headers={"Host": HOST}).status == 200


@pytest.mark.parametrize("path", ["/", "/api/act", "//api/act", "/wrong/api/act", f"/{TOKEN}", f"/{TOKEN}x/api/act"])
def test_a_path_without_the_token_leads_nowhere(path: str) -> None:
    assert call(APP, "GET", path, headers={"Host": HOST}).status == 404


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}", "", f"[::1]:{PORT}"]
)
def test_a_name_that_another_page_has_led_here_is_refused(host: str) -> None:
    assert post(Host=host, Origin=f"http://{host}").status == 421


@pytest.mark.parametrize(
    "origin", ["null", "https://evil.example", f"https://{HOST}", f"http://localhost:{PORT}", None]
)
def test_a_post_of_another_page_is_refused(origin: str | None) -> None:
    assert post(Origin=origin).status == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_the_browser_says_comes_from_another_site_is_refused(site: str) -> None:
    assert call(APP, "GET", f"/{TOKEN}/api/act", headers={"Host": HOST, "Sec-Fetch-Site": site}).status == 403


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Length": str(MAX_BODY_BYTES + 1)}, 413),
        ({"Content-Length": "-1"}, 413),
        ({"Content-Length": "9" * 5000}, 413),
        ({"Content-Length": None}, 413),
        ({"Transfer-Encoding": "chunked"}, 411),
        ({"Transfer-Encoding": "identity, chunked", "Content-Length": None}, 411),
    ],
)
def test_a_body_that_is_not_small_json_is_refused(changed: dict[str, str | None], status: int) -> None:
    assert post(**{name.replace("-", "_"): value for name, value in changed.items()}).status == status


@pytest.mark.parametrize("path", [f"/{TOKEN}/api/act", "/nowhere"])
def test_every_response_confines_the_page(path: str) -> None:
    headers = call(APP, "GET", path, headers={"Host": HOST}).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer", "the address contains the token"
