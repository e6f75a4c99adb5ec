"""All rules that are in force, as an instance knows them, and who decides what.

    defaults <- deployed (cdk.json) <- stage <- tenant <- agent <- conversation

All but the first two are in the table, where operators change them. An instance asks it for its version every few
seconds, and reads it again only if that is another one. Rules that are wrong are skipped, and without the table those
stand that were read last. Only an instance that never read it knows nobody's account, and cannot take messages.
"""

from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Any, Protocol

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import InvalidRules, SendFailed
from message_buffer.limits import MAX_MS_BETWEEN_RULES_CHECKS, MIN_MS_BETWEEN_RULES_CHECKS
from message_buffer.messages.conversation_id import ConversationId, escape_part
from message_buffer.rules.layers import Owner, ResolvedRules, RuleLayer, resolve_rules
from message_buffer.telemetry import Telemetry

DEPLOYED = "deployed"
STAGE = "stage"


class Stored(Protocol):
    @property
    def scope(self) -> str: ...
    @property
    def rules(self) -> Any: ...
    @property
    def version(self) -> int: ...


class ReadsRules(Protocol):
    def version(self) -> int: ...
    def read_all(self) -> Iterable[Stored]: ...


def scopes_of(conversation: ConversationId, agent: str | None = None) -> tuple[str, ...]:
    """Of all layers that may say something about this conversation, the lowest first."""
    tenant = escape_part(conversation.tenant)
    agents = (f"agent:{tenant}/{escape_part(agent)}",) if agent else ()
    return (STAGE, f"tenant:{tenant}", *agents, f"conversation:{conversation}")


def account_scope(platform: str, account: str) -> str:
    return f"account:{escape_part(platform)}/{escape_part(account)}"


def read_scope(scope: str, rules: Any, *, version: int | None = None) -> RuleLayer | Owner:
    """What is stored under a scope. Raises InvalidRules, with a line for each problem."""
    if not isinstance(rules, dict):
        raise InvalidRules("rules: use an object of rules")
    if scope.startswith("account:"):
        return Owner.model_validate(rules)
    if ours := {"name", "version"} & rules.keys():
        raise InvalidRules("\n".join(f"{field}: unknown field; remove it" for field in sorted(ours)))
    return RuleLayer.model_validate({**rules, "name": scope, "version": version})


class _Snapshot:
    """The table as it was read once; each item is understood when it is first needed."""

    def __init__(self, stored: Iterable[Stored], stage_rules: Mapping[str, Any], telemetry: Telemetry) -> None:
        self._stored = {each.scope: each for each in stored}
        self._stage_rules = stage_rules
        self._telemetry = telemetry
        self._read: dict[str, RuleLayer | Owner | None] = {}
        self._resolved: dict[tuple[tuple[str, ...], str], ResolvedRules] = {}

    def resolve(self, scopes: Iterable[str], platform: str) -> ResolvedRules:
        # By the layers that there are: most conversations have none of their own, and share one answer.
        known = tuple(scope for scope in scopes if scope in self._stored)
        resolved = self._resolved.get((known, platform))
        if resolved is None:
            resolved = self._resolved[known, platform] = resolve_rules(self.layers(known), platform)
            for skipped in resolved.skipped:
                self._skip(skipped.layer, skipped.reason, platform=platform)
        return resolved

    def layers(self, scopes: Iterable[str]) -> list[RuleLayer]:
        found = [self._of(scope) for scope in (DEPLOYED, *scopes)]
        return [layer for layer in found if isinstance(layer, RuleLayer)]

    def owner(self, scope: str) -> Owner | None:
        owner = self._of(scope)
        return owner if isinstance(owner, Owner) else None

    def _of(self, scope: str) -> RuleLayer | Owner | None:
        if scope != DEPLOYED and scope not in self._stored:
            return None
        if scope not in self._read:
            self._read[scope] = self._understood(scope)
        return self._read[scope]

    def _understood(self, scope: str) -> RuleLayer | Owner | None:
        try:
            if scope == DEPLOYED:
                return read_scope(scope, self._stage_rules)
            stored = self._stored[scope]
            return read_scope(scope, stored.rules, version=stored.version)
        except InvalidRules as error:
            self._skip(scope, str(error))
            return None

    def _skip(self, layer: str, reason: str, **fields: str) -> None:
        self._telemetry.count("RulesSkipped")
        self._telemetry.warn("rules skipped", layer=layer, reason=reason, **fields)


class RuleBook:
    def __init__(
        self,
        table: ReadsRules | None,
        stage_rules: Mapping[str, Any],
        telemetry: Telemetry,
        *,
        clock: Clock = system_clock,
    ) -> None:
        self._table = table
        self._stage_rules = stage_rules
        self._telemetry = telemetry
        # Wall time: a frozen function's own clock may stand still while its rules grow old.
        self._clock = clock
        self._snapshot = _Snapshot((), stage_rules, telemetry)
        self._version: int | None = None
        self._checked_at_ms = 0
        self._failures = 0
        self._checking = Lock()

    def for_conversation(self, conversation: ConversationId, agent: str | None = None) -> ResolvedRules:
        return self._current().resolve(scopes_of(conversation, agent), conversation.platform)

    def layers_for(self, conversation: ConversationId, agent: str | None = None) -> list[RuleLayer]:
        """The layers that decide about this conversation, the lowest first."""
        return self._current().layers(scopes_of(conversation, agent))

    def owner_of(self, platform: str, account: str) -> Owner | None:
        """Raises SendFailed as long as nobody knows: for whose an account is, there is no default that is safe."""
        snapshot = self._current()
        if self._table is not None and self._version is None:
            raise SendFailed("read rules: the table was never reached, so nobody knows whose an account is")
        return snapshot.owner(account_scope(platform, account))

    def _current(self) -> _Snapshot:
        with self._checking:
            now_ms = self._clock()
            # Before the table was read once, messages are refused: then it is asked as often as may be.
            checks_missed = 0 if self._version is None else self._failures
            pause_ms = min(MIN_MS_BETWEEN_RULES_CHECKS * (checks_missed + 1), MAX_MS_BETWEEN_RULES_CHECKS)
            if self._table is not None and not 0 <= now_ms - self._checked_at_ms < pause_ms:
                self._check(self._table)
                self._checked_at_ms = now_ms
        return self._snapshot

    def _check(self, table: ReadsRules) -> None:
        try:
            # The version first: what is written after it is found by the next check.
            version = table.version()
            if version != self._version:
                self._snapshot = _Snapshot(table.read_all(), self._stage_rules, self._telemetry)
                self._version = version
            self._failures = 0
        except SendFailed as error:
            self._failures += 1
            self._telemetry.count("RulesUnreachable")
            self._telemetry.warn("rules not renewed", reason=str(error))
