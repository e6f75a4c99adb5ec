import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support.local_stage import LocalStage, local_stage
from tests.support.web_server import Answer, Request, WebServer, web_server

WAIT_SECONDS = 12
# The messages of this account have a queue of their own.
HANGING = "hanging"
API_KEY = "the-key-of-the-ai"


@pytest.fixture(scope="session")
def ai() -> Iterator[WebServer]:
    """Yield a server that plays the responder's AI."""
    with web_server() as server:
        server.answer = said("Hello.")
        yield server


def said(text: str) -> Answer:
    content = [{"type": "output_text", "text": text}]
    output = [{"type": "message", "role": "assistant", "content": content}]
    return 200, {"status": "completed", "output": output, "usage": {"input_tokens": 1, "output_tokens": 1}}


def asked(request: Request) -> str:
    """Return the text that the AI is to answer."""
    return str(request.json["input"][-1]["content"])


@contextmanager
def answering(ai: WebServer, answer: Callable[[Request], Answer]) -> Iterator[None]:
    before, ai.answer = ai.answer, answer
    try:
        yield
    finally:
        ai.answer = before


@pytest.fixture(scope="session")
def responder_stage(ai: WebServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStage]:
    """Yield a local stage with a responder; its replies would disturb the tests that count events."""
    responder = {
        "assistant": "openai", "model": "a-model", "assistant_url": f"{ai.url}/v1", "assistant_seconds": 20,
        "channel": "fake", "gate": "discard_and_merge", "gate_wait_seconds": WAIT_SECONDS,
    }  # fmt: skip
    queues = {HANGING: {"account": HANGING}, "default": {}}
    home = tmp_path_factory.mktemp("responding") / "home"
    with local_stage(home, responder=responder, queues=queues, canary=True) as stage:
        secrets = stage.outputs.client("secretsmanager")
        (secret_id,) = [each["Name"] for each in secrets.list_secrets()["SecretList"] if "Responder" in each["Name"]]
        secrets.put_secret_value(SecretId=secret_id, SecretString=json.dumps({"openai": {"apiKey": API_KEY}}))
        yield stage
