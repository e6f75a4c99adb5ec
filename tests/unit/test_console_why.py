"""The console names the rule that decided when a batch leaves, as the formula of the due time has decided it."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from bufferctl.stage import ROOT
from console.causes import CAUSES
from console.rules_in_words import RULES_IN_WORDS
from console.why import PRESSED, WITHOUT_CAPTION, facts_of_batch, facts_of_buffer, why
from lambdas.ingest import preparation
from message_buffer.rules.due_time import (
    Due,
    Facts,
    Rhythm,
    due_after_message,
    due_after_typing,
    rhythm_after,
)
from message_buffer.rules.layers import RULE_FIELDS, Rules
from message_buffer.rules.timing import Timing
from tests.support.script_model import due_after_retime

Json = dict[str, Any]
BEGIN_MS = 1_000_000
TEXT: Json = {"type": "text", "text": "Hey"}
BUTTON: Json = {"type": "interactive", "text": "Yes"}
FILE: Json = {"type": "image", "text": "", "attachments": [{"type": "image"}]}
STICKER: Json = {"type": "sticker", "text": "", "attachments": [{"type": "sticker"}]}
VOICE: Json = {"type": "audio", "text": "", "attachments": [{"type": "audio", "pending": True}]}
RULES = Rules(silence_ms=1_000, typing_inference_ms=3_000, pressed_silence_ms=200)


def explained(rules: Rules) -> Json:
    """Return the rules as `rules.explain` has them, all from one layer."""
    return {
        wire: {"value": getattr(rules, name), "layer": "tenant:acme"}
        for name, wire in RULE_FIELDS.items()
        if name not in ("stop_words", "flush_words", "control_languages", "on_human_reply", "inbox_apps")
    }


class Buffer:
    """A buffer whose due time the library computes, and which the console explains."""

    def __init__(self, rules: Rules = RULES) -> None:
        self.rules = rules
        self.messages: list[Json] = []
        self.due: Due | None = None
        self.rhythm: Rhythm | None = None
        self.seen: list[Json] = []
        self.last_at_ms = BEGIN_MS

    def message(self, content: Json, *, after_ms: int = 0) -> "Buffer":
        before_ms = self.last_at_ms if self.messages else None
        at_ms = BEGIN_MS if before_ms is None else before_ms + after_ms
        self.last_at_ms = at_ms
        self.messages.append(content | {"receivedAt": at_ms})
        gap_ms = None if before_ms is None else at_ms - before_ms
        timing = self.timing(content)
        self.rhythm = rhythm_after(self.rhythm, gap_ms, timing)
        self.due = due_after_message(self._facts(gap_ms), timing, at_ms)
        return self

    def timing(self, content: Json) -> Timing:
        files = [each for each in content.get("attachments", ()) if each["type"] not in preparation.WITHOUT_CAPTION]
        return self.rules.timing_of(
            is_media=bool(files) and not content["text"],
            is_pending=any(each.get("pending") for each in files),
            is_pressed=content["type"] in preparation.PRESSED,
        )

    def typing(self, *, at_ms: int) -> "Buffer":
        """Extend the wait as ingest does. The console has sent the event half a second before it arrived."""
        assert self.due
        timing = self.rules.timing
        self.seen.append({"kind": "sent typing", "at": at_ms - 500})
        self.due = due_after_typing(
            self.due,
            first_at_ms=BEGIN_MS,
            extend_ms=max(timing.typing_ms, timing.silence_ms),
            max_wait_ms=timing.max_wait_ms,
            now_ms=at_ms,
        )
        return self

    def transcript(self, *, at_ms: int, of_a_customer_of_the_page: bool = False) -> "Buffer":
        """Edit the newest message. An edit of the generic platform may lack its time, and replaces the arrival."""
        when = {"receivedAt": at_ms} if of_a_customer_of_the_page else {"editedAt": at_ms}
        self.messages[-1] |= {"text": "Where is it?", "attachments": [{"type": "audio"}]} | when
        self.due = due_after_retime(self._facts(None), self.timing(self.messages[-1]), at_ms)
        return self

    def deleted(self, place: int, *, was_seen: bool = False) -> "Buffer":
        """Delete a message. The due time and the times of the first and the last message stay."""
        assert self.due
        if was_seen:
            said = why(facts_of_buffer(self.shown), explained(self.rules), self.seen)
            self.seen.append({"kind": "look", "at": BEGIN_MS, "dueAt": self.due.due_at_ms, "cause": said})
        del self.messages[place]
        self.seen.append({"kind": "sent delete", "at": self.last_at_ms + 100})
        return self

    def _facts(self, gap_ms: int | None) -> Facts:
        return Facts(BEGIN_MS, self.last_at_ms, len(self.messages), gap_ms, rhythm=self.rhythm, due=self.due)

    @property
    def event(self) -> Json:
        assert self.due
        times = {"firstMessageAt": BEGIN_MS, "lastMessageAt": self.last_at_ms}
        return {
            "flushReason": self.due.reason, "messageCount": len(self.messages), "messages": self.messages,
            "metadata": {**times, "waitMs": self.due.due_at_ms - BEGIN_MS},
        }  # fmt: skip

    @property
    def shown(self) -> Json:
        assert self.due
        return {
            "count": len(self.messages), "dueAt": self.due.due_at_ms, "reason": self.due.reason,
            "firstAt": BEGIN_MS, "lastAt": self.last_at_ms, "messages": self.messages,
        }  # fmt: skip


VIP = Rules(priority="vip", vip_silence_ms=700)
ADAPTIVE = Rules(adaptive=True, adaptive_floor_ms=100)
BUFFERS = {
    "silence": (Buffer().message(TEXT), "silenceMs"),
    "a long gap": (Buffer(Rules(typing_inference_ms=0)).message(TEXT).message(TEXT, after_ms=900), "silenceMs"),
    "a short gap": (Buffer().message(TEXT).message(TEXT, after_ms=400), "typingInferenceMs"),
    "a file": (Buffer().message(FILE), "mediaSilenceMs"),
    "a sticker": (Buffer().message(STICKER), "silenceMs"),
    "a file of rules with equal values": (Buffer(Rules(silence_ms=2_000)).message(FILE), "mediaSilenceMs"),
    "a voice note": (Buffer().message(VOICE), "transcriptWaitMs"),
    "a transcript": (Buffer().message(VOICE).transcript(at_ms=BEGIN_MS + 2_500), "transcript"),
    "a transcript without the time of the edit": (
        Buffer().message(VOICE).transcript(at_ms=BEGIN_MS + 2_500, of_a_customer_of_the_page=True),
        "transcript",
    ),
    "a short gap before a message that is deleted": (
        Buffer().message(TEXT).message(TEXT, after_ms=400).deleted(1),
        "typingInferenceMs",
    ),
    "a short gap after a message that is deleted": (
        Buffer().message(TEXT).message(TEXT, after_ms=400).deleted(0),
        "typingInferenceMs",
    ),
    "a text that is deleted before a button": (
        Buffer().message(TEXT).message(BUTTON, after_ms=498).deleted(0),
        "deleted",
    ),
    "a text that is deleted before a button, when the page has seen it": (
        Buffer().message(TEXT).message(BUTTON, after_ms=498).deleted(0, was_seen=True),
        "silenceMs",
    ),
    "a transcript that comes at once": (Buffer().message(VOICE).transcript(at_ms=BEGIN_MS + 300), "silenceMs"),
    "a button": (Buffer().message(BUTTON), "pressedSilenceMs"),
    "a button that waits for nothing": (Buffer(Rules()).message(BUTTON), "pressed at once"),
    "a button after a text": (Buffer().message(TEXT).message(BUTTON, after_ms=498), "silenceMs"),
    "two buttons after a file": (
        Buffer().message(FILE).message(BUTTON, after_ms=300).message(BUTTON, after_ms=300),
        "mediaSilenceMs",
    ),
    "a button that a text follows": (Buffer().message(BUTTON).message(TEXT, after_ms=100), "typingInferenceMs"),
    "a text that came after the batch was due": (Buffer().message(TEXT).message(TEXT, after_ms=1_005), "silenceMs"),
    "a typing event": (Buffer().message(TEXT).typing(at_ms=BEGIN_MS + 700), "typing"),
    "typing until the longest wait": (
        Buffer(Rules(max_wait_ms=3_500)).message(TEXT).typing(at_ms=BEGIN_MS + 900),
        "max_wait",
    ),
    "the longest wait": (
        Buffer(Rules(max_wait_ms=3_100)).message(TEXT).message(TEXT, after_ms=900).message(TEXT, after_ms=900),
        "max_wait",
    ),
    "too few messages": (Buffer(Rules(min_messages=2)).message(TEXT), "minMessages"),
    "equal values, of which only silence waits": (
        Buffer(Rules(silence_ms=3_000)).message(TEXT).message(TEXT, after_ms=2_900),
        "silenceMs",
    ),
    "a VIP's typing event": (Buffer(VIP).message(TEXT).typing(at_ms=BEGIN_MS + 500), "typing"),
    "a VIP's longest wait, with too few messages for others": (
        Buffer(
            Rules(
                priority="vip",
                vip_silence_ms=700,
                max_wait_ms=1_000,
                silence_ms=10,
                typing_inference_ms=0,
                min_messages=5,
            )
        )
        .message(TEXT)
        .message(TEXT, after_ms=600),
        "max_wait",
    ),
    "a fixed window": (Buffer(Rules(wait="window")).message(TEXT).message(TEXT, after_ms=50), "windowMs"),
    "many messages": (Buffer(Rules(max_messages=2)).message(TEXT).message(TEXT, after_ms=5), "max_messages"),
    "a VIP": (Buffer(Rules(priority="vip")).message(TEXT), "priority"),
    "a VIP's silence": (Buffer(VIP).message(FILE).message(TEXT, after_ms=5), "vipSilenceMs"),
    "a rhythm": (Buffer(ADAPTIVE).message(TEXT).message(TEXT, after_ms=131), "adaptive"),
    "a rhythm that is not known": (Buffer(ADAPTIVE).message(TEXT), "silenceMs"),
}


@pytest.mark.parametrize("name", BUFFERS)
@pytest.mark.parametrize("has_left", [True, False], ids=["has left", "waits"])
def test_the_rule_that_decided_is_named(name: str, has_left: bool) -> None:
    buffer, cause = BUFFERS[name]
    facts = facts_of_batch(buffer.event) if has_left else facts_of_buffer(buffer.shown)
    said = why(facts, explained(buffer.rules), buffer.seen, has_left=has_left)
    assert said["cause"] == cause
    rule = CAUSES[cause].rule
    if rule:
        assert (said["rule"], said["layer"]) == (rule, "tenant:acme")
        if "{value}" in (CAUSES[cause].left if has_left else CAUSES[cause].waits):
            assert str(said["shown"]) in said["text"]
    assert_is_prose(said["text"])


def assert_is_prose(text: str) -> None:
    assert text.endswith(".")
    assert not re.search(r"[{}]|None|-\d|\d\.\d{3}", text), text


def test_a_typing_event_of_a_vip_waits_by_the_rule_of_vips() -> None:
    buffer, _ = BUFFERS["a VIP's typing event"]
    assert why(facts_of_buffer(buffer.shown), explained(VIP), buffer.seen)["rule"] == "vipSilenceMs"


def test_a_window_that_the_longest_wait_cuts_is_as_long_as_that() -> None:
    rules = Rules(wait="window", window_ms=10_000, max_wait_ms=5_000)
    said = why(facts_of_buffer(Buffer(rules).message(TEXT).shown), explained(rules))
    assert (said["cause"], said["rule"], said["shown"]) == ("windowMs", "maxWaitMs", "5 s")


def test_a_vip_is_not_said_to_wait_by_a_rhythm() -> None:
    rules = Rules(priority="vip", vip_silence_ms=700, adaptive=True)
    buffer = Buffer(rules).message(TEXT)
    assert buffer.due
    buffer.due = buffer.due._replace(due_at_ms=buffer.due.due_at_ms + 40)
    assert why(facts_of_buffer(buffer.shown), explained(rules))["cause"] == "silence"


def test_a_button_after_a_text_is_named_beside_the_rule_of_the_text() -> None:
    buffer = Buffer().message(TEXT).message(BUTTON, after_ms=498)
    said = why(facts_of_batch(buffer.event), explained(RULES), has_left=True)
    assert said["text"] == "A button does not shorten the wait of the message before it. The author was silent for 1 s."


def test_a_deletion_is_named_beside_the_rule_that_it_does_not_change() -> None:
    buffer = Buffer().message(TEXT).message(TEXT, after_ms=400).deleted(1)
    said = why(facts_of_buffer(buffer.shown), explained(RULES), buffer.seen)
    assert said["text"].startswith("A message was deleted, which does not change the due time. The gap was short")


def test_a_deletion_that_another_program_asked_for_is_seen_by_the_time_of_the_newest_message() -> None:
    buffer = Buffer().message(TEXT).message(TEXT, after_ms=400).deleted(1)
    assert why(facts_of_buffer(buffer.shown), explained(RULES))["cause"] == "typingInferenceMs"


def test_a_deletion_in_an_earlier_batch_explains_nothing() -> None:
    buffer = Buffer().message(TEXT)
    assert buffer.due
    buffer.due = buffer.due._replace(due_at_ms=buffer.due.due_at_ms + 1_347)
    earlier = [{"kind": "sent delete", "at": BEGIN_MS - 1}]
    assert why(facts_of_batch(buffer.event), explained(RULES), earlier, has_left=True)["cause"] == "silence"


def test_a_message_that_came_late_is_named() -> None:
    buffer = Buffer().message(TEXT).message(TEXT, after_ms=1_005)
    said = why(facts_of_batch(buffer.event), explained(RULES), has_left=True)
    assert said["text"].startswith("The last message came after the batch was due, and left with it.")
    without_messages = why(facts_of_batch(buffer.event | {"messages": []}), explained(RULES), has_left=True)
    assert without_messages["label"] == "silence"
    assert_is_prose(without_messages["text"])


@pytest.mark.parametrize("name", [name for name, (_, cause) in BUFFERS.items() if cause in ("silenceMs", "max_wait")])
def test_without_messages_only_a_rule_with_the_right_value_is_named(name: str) -> None:
    """A large batch has a reference in place of its messages."""
    buffer, cause = BUFFERS[name]
    said = why(facts_of_batch(buffer.event | {"messages": []}), explained(buffer.rules), buffer.seen, has_left=True)
    assert said["cause"] in (cause, "silence", "late")


def test_a_due_time_that_no_rule_explains_is_called_silence_with_a_rounded_time() -> None:
    buffer = Buffer().message(TEXT)
    assert buffer.due
    buffer.due = buffer.due._replace(due_at_ms=buffer.due.due_at_ms + 1_347)
    said = why(facts_of_batch(buffer.event), explained(RULES), has_left=True)
    assert (said["label"], "rule" in said) == ("silence", False)
    assert "2.3 s after the last message" in said["text"]


@pytest.mark.parametrize("waits_ms", [990, 600])
def test_a_due_time_near_that_of_a_rule_is_not_explained_by_it(waits_ms: int) -> None:
    """The first wait is nearly `silenceMs` after the last message; the second is `silenceMs` after the first one."""
    buffer = Buffer().message(TEXT).message(TEXT, after_ms=400)
    assert buffer.due
    buffer.due = buffer.due._replace(due_at_ms=BEGIN_MS + 400 + waits_ms)
    assert "rule" not in why(facts_of_batch(buffer.event), explained(RULES), has_left=True)


@pytest.mark.parametrize(
    ("reason", "seen", "cause"),
    [
        ("flush", [], "flush"),
        ("flush", ["sent flush word"], "flush word"),
        ("flush", ["sent flush word", "operator: flush"], "operator's flush"),
        ("hold", [], "hold"),
        ("hold", ["operator: hold", "messages.conversation.taken_over"], "takeover"),
        ("hold", ["messages.conversation.taken_over", "operator: hold"], "hold"),
        ("resume", [], "resume"),
    ],
)
def test_the_time_line_says_who_decided(reason: str, seen: list[str], cause: str) -> None:
    event = Buffer().message(TEXT).event | {"flushReason": reason}
    entries = [{"kind": kind, "at": 0} for kind in seen]
    assert why(facts_of_batch(event), explained(RULES), entries, has_left=True)["cause"] == cause


def test_rules_that_are_not_known_are_not_made_up() -> None:
    for reason in CAUSES:
        event = Buffer().message(TEXT).event | {"flushReason": reason}
        assert_is_prose(why(facts_of_batch(event), {}, has_left=True)["text"])


def test_an_unknown_reason_is_shown_as_it_is() -> None:
    event = Buffer().message(TEXT).event | {"flushReason": "<b>new</b>"}
    assert why(facts_of_batch(event), explained(RULES), has_left=True)["label"] == "<b>new</b>"


def test_nothing_is_said_of_an_empty_buffer_or_of_an_event_without_times() -> None:
    assert why(facts_of_buffer({"count": 0, "dueAt": None}), {}) == {"text": "Nothing waits."}
    assert facts_of_batch({"metadata": {}, "messageCount": 1}) is None


# -- words ------------------------------------------------------------------------------------------------


def reasons_of_the_stage() -> set[str]:
    """Return each reason that the library, the functions or the scripts write, found in their sources."""
    found = set()
    for path in [*(ROOT / "message_buffer").rglob("*.py"), *(ROOT / "lambdas").rglob("*.py")]:
        found |= _reasons_of(path)
    for path in (ROOT / "lua").glob("*.lua"):
        for line in path.read_text().splitlines():
            if re.search(r"\breason\b[^'(]*=", line):
                found |= set(re.findall(r"'([a-z_]{3,})'", line.partition("--")[0]))
    return found - {"idle", "handover"}


def _reasons_of(path: Path) -> set[str]:
    """Return the texts in a `Due(…)` of this file, and those of `due_for=` and `flush_reason=`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Call):
            parts = [each.value for each in node.keywords if each.arg in ("due_for", "flush_reason")]
            if isinstance(node.func, ast.Name) and node.func.id == "Due":
                # An argument that is a call reads a due time that was stored.
                parts += [each for each in node.args[1:] if not isinstance(each, ast.Call)]
        constants = [each for part in parts for each in ast.walk(part) if isinstance(each, ast.Constant)]
        found |= {
            each.value for each in constants if isinstance(each.value, str) and re.fullmatch("[a-z_]+", each.value)
        }
    return found


def test_every_reason_that_a_stage_can_give_has_a_sentence() -> None:
    reasons = reasons_of_the_stage()
    assert {"silence", "max_wait", "max_messages", "max_bytes", "priority", "flush", "hold", "resume"} <= reasons
    assert reasons <= set(CAUSES)


def test_every_rule_is_said_in_words() -> None:
    assert list(RULES_IN_WORDS) == list(RULE_FIELDS.values())
    assert {cause.rule for cause in CAUSES.values() if cause.rule} <= set(RULES_IN_WORDS)


def test_presses_and_files_without_captions_are_those_of_ingest() -> None:
    assert set(PRESSED) == preparation.PRESSED
    assert set(WITHOUT_CAPTION) == preparation.WITHOUT_CAPTION


def test_the_panel_of_the_page_has_a_line_for_every_cause() -> None:
    named = set(re.findall(r'"([^"]+)"', (ROOT / "console" / "page" / "when_due.js").read_text()))
    # These mean that no rule was found.
    assert set(CAUSES) - named == {"silence", "deleted"}
