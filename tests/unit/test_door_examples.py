"""The shipped mappings: a person has one conversation, and `door try` checks a webhook's proof as ingest does."""

import io
import json
import time
from pathlib import Path

import pytest

from bufferctl.__main__ import main
from lambdas.ingest.platforms.base import Incoming, Webhook
from lambdas.ingest.platforms.custom import Custom
from message_buffer.messages.changes import Deleted, Edited
from message_buffer.rules.doors import read_door
from tests.unit.test_doors import EXAMPLES, FIXTURES, read

ROOT = Path(__file__).parents[2]
CHATWOOT, BODY = ROOT / "examples/doors/chatwoot.json", ROOT / "tests/fixtures/doors/chatwoot/text.json"
KEY = "the key of the door"


@pytest.mark.parametrize(
    ("door", "person"), [("evolution", "15552223333@s.whatsapp.net"), ("waha", "15552223333@c.us")]
)
def test_a_person_has_one_conversation_by_number_and_by_lid_and_a_private_chat_is_no_group(
    door: str, person: str
) -> None:
    """WhatsApp names a person by the number, or by a `lid` with the number elsewhere in the webhook."""
    known = [path for path in FIXTURES if path.parent.name == door and path.stem != "lid_without_number"]
    updates = [each for path in known for each in read(EXAMPLES[door], json.loads(path.read_text()), name=door).updates]
    private = [each for each in updates if not each.conversation.user.endswith("@g.us")]
    assert {each.conversation.user for each in private} == {person}
    assert {type(each).__name__ for each in private} == {"Incoming", "Edited", "Deleted", "Reacted"}
    for each in updates:
        if isinstance(each, Incoming | Edited | Deleted):
            assert each.group is (each not in private)
            assert (each.author if isinstance(each, Deleted) else each.message.author) == person


def test_door_try_checks_a_proof_as_ingest_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"{KEY}\n")
    tried = ["door", "try", str(CHATWOOT), str(BODY), "--secret-file"]

    def signed(at: str) -> list[str]:
        webhook = Webhook("POST", "", {"x-chatwoot-timestamp": at}, {}, BODY.read_bytes())
        proof = Custom(read_door("chatwoot", EXAMPLES["chatwoot"])).expected(webhook, KEY)
        return ["--header", f"X-Chatwoot-Timestamp: {at}", "--header", f"X-Chatwoot-Signature: {proof}"]

    now = str(int(time.time()))
    assert main([*tried, str(secret), *signed(now)]) == 0
    shown = capsys.readouterr()
    assert (json.loads(shown.out)[0]["is"], shown.err) == ("sent", "The proof is right.\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(KEY))
    assert main([*tried, "-", *signed("1790330400")]) == 0
    assert "too far from now" in capsys.readouterr().err
    secret.write_text("another")
    assert main([*tried, str(secret), *signed(now)]) == 1
    assert "it expects the header x-chatwoot-signature: sha256=" in capsys.readouterr().err
    assert main([*tried, str(secret)]) == 1
    assert "Missing: x-chatwoot-signature, x-chatwoot-timestamp." in capsys.readouterr().err
    assert main(["door", "try", str(CHATWOOT), str(BODY), "--header", "X: y"]) == 2
    postmark = [ROOT / "examples/doors/postmark.json", ROOT / "tests/fixtures/doors/postmark/new_mail.json"]
    assert main(["door", "try", *map(str, postmark), "--secret-file", str(secret)]) == 1
    shown = capsys.readouterr()
    assert "authorization: Basic (the secret in base64)." in shown.err
    assert "another" not in shown.err
