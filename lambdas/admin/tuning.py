"""Shows how long authors are silent before they go on, and once a week moves the waits towards the recommended ones."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from lambdas.admin import requests as r
from lambdas.admin.rules import ANY, MIN_MS_LEFT_TO_RETIME, RulesAdmin
from lambdas.operations import SubjectNotFound
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import InvalidRules, MessageBufferError
from message_buffer.json_object import Json
from message_buffer.limits import DAY_MS
from message_buffer.messages.conversation_id import unescape_part
from message_buffer.telemetry import Telemetry
from message_buffer.tuning.curve import recommend
from message_buffer.tuning.tuning_table import STAGE, TuningTable

# A response has the scopes with the most batches, and has room for this many.
MAX_SCOPES = 2_000
# In a week, a wait becomes at most this many times as long or as short.
MAX_FACTOR = 1.5
# No move makes a wait shorter than this. Recommended silences are no longer than `curve.WITHIN_MS`.
MIN_SILENCE_MS = 1_000


@dataclass(frozen=True)
class Tuning:
    table: TuningTable
    rules: RulesAdmin
    telemetry: Telemetry
    time_left: Callable[[], int]
    clock: Clock = system_clock

    def read(self, request: r.ReadTuning) -> Json:
        """Return the counts of the last weeks by scope (`tenant/platform/agent`), and, if asked, a sample of turns."""
        since_ms = self.clock() - (request.weeks - 1) * 7 * DAY_MS
        sums = self.table.sums(since_ms=since_ms)
        scopes = sorted(sums.keys() - {STAGE}, key=lambda scope: -sums[scope]["batches"])
        found: Json = {"scopes": {scope: sums[scope] for scope in scopes[:MAX_SCOPES]}}
        return found | ({"turns": self.table.turns(since_ms=since_ms)} if request.turns else {})

    def move(self, request: r.MoveWaits) -> Json:
        """Move the waits of the scopes with enough batches towards the goal. Return the moves."""
        moves = []
        for name, counts in self.read(r.ReadTuning(by=request.by))["scopes"].items():
            best = recommend(counts, cut_share=request.cut_share)
            if isinstance(best, str) or self.time_left() <= MIN_MS_LEFT_TO_RETIME:
                continue
            try:
                if move := self._move(name, best[0], request.by):
                    self.telemetry.info("wait tuned", **move)
                    moves.append(move)
            except MessageBufferError as error:
                self.telemetry.warn("wait not tuned", scope=name, reason=str(error))
        return {"moves": moves}

    def _move(self, name: str, silence_ms: int, by: str) -> Json | None:
        """Move the wait of a scope towards `silence_ms`, unless its rules let it wait in another way."""
        tenant, platform, agent = name.split("/")
        example = r.ExplainRules(
            by=by, conversation=f"{tenant}/{platform}/{ANY}/{ANY}", agent=unescape_part(agent) or None
        )
        rules = self.rules.explain(example)["rules"]
        before = rules["silenceMs"]["value"]
        after = max(int(min(max(silence_ms, before / MAX_FACTOR), before * MAX_FACTOR)), MIN_SILENCE_MS)
        # Unless a rule says how long they wait, doors and Twilio's channels differ, such as by minutes for e-mail.
        is_ruled = rules["silenceMs"]["layer"].partition(",")[0] not in ("defaults", "platform")
        is_by_channel = platform in ("custom", "twilio") and not is_ruled
        is_by_silence = (rules["wait"]["value"], rules["priority"]["value"]) == ("silence", "normal")
        if after == before or is_by_channel or not is_by_silence:
            return None
        scope, stored = f"agent:{tenant}/{agent}" if agent else f"tenant:{tenant}", Json(rules={}, version=0)
        with suppress(SubjectNotFound):
            stored = self.rules.get(r.OfScope(by=by, scope=scope))
        if "problem" in stored:
            raise InvalidRules(stored["problem"])
        overrides = stored["rules"].get("platformOverrides", {})
        override = {**overrides.get(platform, {}), "silenceMs": after, "typingInferenceMs": 0}
        changed = {**stored["rules"], "platformOverrides": {**overrides, platform: override}}
        change = {"by": by, "scope": scope, "rules": changed, "expectedVersion": stored["version"]}
        self.rules.set(r.read_request(r.SetRules, change))
        return {"scope": scope, "platform": platform, "before": before, "after": after}
