"""The rules that are in force, as one instance of a function knows them.

    defaults <- platform <- deployed (cdk.json) <- stage <- tenant <- agent <- conversation

The table contains the layers from `stage` on, and the doors. Operators change both there. An instance reads the
table's version every few seconds, and the whole table only if the version has changed. Invalid rules are skipped. If
the table cannot be reached, the rules that were read last stay in force. An instance that has never read the table
cannot know who owns an account, so it refuses messages.
"""

from collections.abc import Iterable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import InvalidRules, SendFailed
from message_buffer.limits import MAX_QUOTA, MIN_MS_BETWEEN_RULES_CHECKS
from message_buffer.messages.conversation_id import ConversationId, door_of, escape_part
from message_buffer.rules.layers import DEPLOYED, ResolvedRules, read_layer, resolve_rules
from message_buffer.rules.platform_numbers import numbers_of
from message_buffer.rules.queues import NO_QUEUES, Queues
from message_buffer.rules.quota import ACCOUNT_QUOTA, Charge, Quota
from message_buffer.rules.rules_and_defaults import Owner, PartialQuota, RuleLayer
from message_buffer.rules.rules_table import StoredRules
from message_buffer.telemetry import Telemetry

if TYPE_CHECKING:
    from message_buffer.rules.doors import Door

T = TypeVar("T")

# An instance keeps the resolved rules of this many combinations of layers. Without this limit, a sender who names
# agents could combine every agent with every conversation that has rules of its own.
MAX_RESOLVED_RULES = 4_096
# While the rules' table cannot be read, the pause between checks grows to this, because a webhook waits for each check.
MAX_MS_BETWEEN_RULES_CHECKS = 30_000
STAGE = "stage"
# A door's scope is this prefix and the door's name.
DOOR = "door:"


class ReadsRules(Protocol):
    def version(self) -> int: ...
    def read_all(self) -> Iterable[StoredRules]: ...


def scopes_of(conversation: ConversationId, agent: str | None = None) -> tuple[str, ...]:
    """Return the scopes whose rules may apply to this conversation, in ascending order of precedence."""
    agents = (f"agent:{escape_part(conversation.tenant)}/{escape_part(agent)}",) if agent else ()
    return (STAGE, tenant_scope(conversation.tenant), *agents, conversation_scope(str(conversation)))


def tenant_scope(tenant: str) -> str:
    return f"tenant:{escape_part(tenant)}"


def conversation_scope(conversation: str) -> str:
    return f"conversation:{conversation}"


def account_scope(platform: str, account: str) -> str:
    return f"account:{escape_part(platform)}/{escape_part(account)}"


def read_scope(scope: str, rules: Any, *, version: int | None = None) -> "RuleLayer | Owner | Door":
    """Return the layer, the owner or the door that is stored under a scope.

    Raise InvalidRules, with a line for each problem.
    """
    if scope.startswith(DOOR):
        from message_buffer.rules.doors import read_door  # noqa: PLC0415 - most stages have no doors

        return read_door(scope.removeprefix(DOOR), rules)
    if not isinstance(rules, dict):
        raise InvalidRules("rules: use an object of rules")
    if scope.startswith("account:"):
        return Owner.model_validate(rules)
    return read_layer(scope, rules, version=version)


class _Snapshot:
    """The table as it was read at one time. Each item is parsed when it is first needed."""

    def __init__(self, stored: Iterable[StoredRules], stage_rules: Mapping[str, Any], telemetry: Telemetry) -> None:
        self._stored = {each.scope: each for each in stored}
        self._stage_rules = stage_rules
        self._telemetry = telemetry
        self._read: dict[str, RuleLayer | Owner | Door | None] = {}
        self._resolved: dict[tuple[tuple[str, ...], str, str], ResolvedRules] = {}

    def resolve(self, scopes: Iterable[str], platform: str, numbers: RuleLayer | None) -> ResolvedRules:
        # Cache by the scopes that have rules. Most conversations have no rules of their own, so they share one result.
        known = tuple(scope for scope in scopes if scope in self._stored)
        key = known, platform, numbers.name if numbers else ""
        resolved = self._resolved.get(key)
        if resolved is None:
            if len(self._resolved) >= MAX_RESOLVED_RULES:
                self._resolved.clear()
            resolved = self._resolved[key] = resolve_rules(self.layers(known), platform, numbers)
            for skipped in resolved.skipped:
                self._skip(skipped.layer, skipped.reason, platform=platform)
        return resolved

    def layers(self, scopes: Iterable[str]) -> list[RuleLayer]:
        found = [self.get(scope, RuleLayer) for scope in (DEPLOYED, *scopes)]
        return [layer for layer in found if layer is not None]

    def owner(self, platform: str, account: str) -> Owner | None:
        """Return the owner that the table names for the account, or else for the account's door."""
        for each in dict.fromkeys((account, door_of(platform, account))):
            if owner := self.get(account_scope(platform, each), Owner):
                return owner
        return None

    def get(self, scope: str, kind: type[T]) -> T | None:
        found = self._of(scope)
        return found if isinstance(found, kind) else None

    def quota(self, scope: str) -> PartialQuota | None:
        found = self.get(scope, RuleLayer) or self.get(scope, Owner)
        return found.quota if found else None

    def door(self, name: str) -> "Door | None":
        door = self._of(f"{DOOR}{name}")
        return None if isinstance(door, RuleLayer | Owner) else door

    def _of(self, scope: str) -> "RuleLayer | Owner | Door | None":
        if scope != DEPLOYED and scope not in self._stored:
            return None
        if scope not in self._read:
            self._read[scope] = self._understood(scope)
        return self._read[scope]

    def _understood(self, scope: str) -> "RuleLayer | Owner | Door | None":
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
        queues: Queues = NO_QUEUES,
        quota: Quota = ACCOUNT_QUOTA,
        has_platform_numbers: bool = True,
        clock: Clock = system_clock,
    ) -> None:
        self._table = table
        self._stage_rules = stage_rules
        self._telemetry = telemetry
        self.queues = queues
        self._quota = quota
        self._has_platform_numbers = has_platform_numbers
        # Use wall time, because the monotonic clock may stop while Lambda suspends the instance, but rules still age.
        self._clock = clock
        self._snapshot = _Snapshot((), stage_rules, telemetry)
        self._version: int | None = None
        self._checked_at_ms = 0
        self._failures = 0
        self._checking = Lock()

    def for_conversation(self, conversation: ConversationId, agent: str | None = None) -> ResolvedRules:
        snapshot, platform, account = self._current(), conversation.platform, conversation.account
        numbers = numbers_of(platform, account) if self._has_platform_numbers else None
        return snapshot.resolve(scopes_of(conversation, agent), platform, numbers)

    def layers_for(self, conversation: ConversationId, agent: str | None = None) -> list[RuleLayer]:
        """Return the layers that apply to this conversation, the lowest first."""
        return self._current().layers(scopes_of(conversation, agent))

    def owner_of(self, platform: str, account: str) -> Owner | None:
        """Return the owner of the account, or else of its door, or None if the table names neither. Raise SendFailed if
        the table was never read, because there is no safe default for an owner."""
        return self._current_of_table("the owner of an account is not known").owner(platform, account)

    def door(self, name: str) -> "Door | None":
        """Return the door of this name, or None if the table has no valid one. Raise SendFailed if the table was never
        read, because a sender who is told that the door does not exist might give up."""
        return self._current_of_table("the doors are not known").door(name)

    def charge_for(self, conversation: ConversationId) -> Charge:
        """Return the quotas of the conversation's account, door and tenant.

        A door is always charged, because its sender may name any of its accounts, or invent one.
        """
        snapshot = self._current()
        platform, account = conversation.platform, conversation.account
        door = account_scope(platform, door_of(platform, account))
        defaults = {
            account_scope(platform, account): self._quota,
            door: self._quota,
            tenant_scope(conversation.tenant): Quota(MAX_QUOTA, MAX_QUOTA),
        }
        own = {scope: quota for scope in defaults if (quota := snapshot.quota(scope))}
        quotas = (
            (scope.partition(":")[2], own[scope].on_top_of(default) if scope in own else default)
            for scope, default in defaults.items()
            if scope in own or scope == door
        )
        return Charge(tuple(quotas), is_exact=bool(own))

    def _current_of_table(self, otherwise: str) -> _Snapshot:
        snapshot = self._current()
        if self._table is not None and self._version is None:
            raise SendFailed(f"read rules: the table was never reached, so {otherwise}")
        return snapshot

    def _current(self) -> _Snapshot:
        with self._checking:
            now_ms = self._clock()
            # Until the table has been read for the first time, messages are refused. So until then, do not lengthen the
            # pause after a failure.
            checks_missed = 0 if self._version is None else self._failures
            pause_ms = min(MIN_MS_BETWEEN_RULES_CHECKS * (checks_missed + 1), MAX_MS_BETWEEN_RULES_CHECKS)
            if self._table is not None and not 0 <= now_ms - self._checked_at_ms < pause_ms:
                self._check(self._table)
                self._checked_at_ms = now_ms
        return self._snapshot

    def _check(self, table: ReadsRules) -> None:
        try:
            # Read the version before the rules. If rules are written in between, the next check sees a newer version.
            version = table.version()
            if version != self._version:
                self._snapshot = _Snapshot(table.read_all(), self._stage_rules, self._telemetry)
                self._version = version
            self._failures = 0
        except SendFailed as error:
            self._failures += 1
            self._telemetry.count("TablesUnreachable")
            self._telemetry.warn("rules not renewed", reason=str(error))
