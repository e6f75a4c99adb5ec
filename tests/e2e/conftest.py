import json
from collections.abc import Iterator

import pytest

from tests.support.local_stage import LocalStage, local_stage
from tests.support.web_server import Answer, WebServer, web_server

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
