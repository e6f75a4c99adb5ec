"""Shows, checks, stores and explains the rules that operators change, and retimes the open buffers in their scope."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lambdas.admin.conversations import MAX_CONVERSATIONS_IN_A_PAGE, MAX_WINDOWS_IN_A_LISTING
from lambdas.admin.requests import DeleteRules, ExplainRules, ListRules, OfScope, SetRules, read_request
from lambdas.operations import SubjectNotFound
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import InvalidId, InvalidInput, InvalidRules, SendFailed, StoreError
from message_buffer.json_object import Json
from message_buffer.lanes.dynamodb.lane import DynamoDbLane
from message_buffer.lanes.outcomes import BufferEmpty, BufferRetimed
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.lanes.valkey.store import FIRST_PAGE, Store
from message_buffer.messages.conversation_id import ConversationId, parse_conversation_id
from message_buffer.rules.due_time import Facts, due_after_message
from message_buffer.rules.layers import resolve_rules
from message_buffer.rules.queues import unknown_queues
from message_buffer.rules.rule_book import DOOR, RuleBook, account_scope, read_scope, scopes_of
from message_buffer.rules.rules_and_defaults import RuleLayer, Rules, check_platform_names
from message_buffer.rules.rules_table import RulesTable, StoredRules

# The number of doors has a limit, because each instance reads the mappings of all doors with the rules.
MAX_DOORS = 50
# Rules are mostly short, so the rules of 5,000 scopes fit into a response, unless they are all huge.
MAX_RULES_LISTED = 5_000
# Retiming stops when less time than this is left, which is enough for the response and the slowest call to Valkey.
MIN_MS_LEFT_TO_RETIME = 13_000
# The id of an example conversation has this in each part that the scope does not name.
ANY = "*"
_PART = "(?:[^%/]|%25|%2F)+"
_SCOPE = re.compile(
    f"stage|tenant:{_PART}|(?:agent|account):{_PART}/{_PART}|conversation:{_PART}(?:/{_PART}){{3}}|door:[^/%]+"
)


class _FixedTable:
    """Stands in for the table, with a fixed list of stored rules."""

    def __init__(self, stored: Iterable[StoredRules]) -> None:
        self._stored = stored

    def version(self) -> int:
        return 0

    def read_all(self) -> Iterable[StoredRules]:
        return self._stored


class RulesAdmin:
    def __init__(
        self,
        *,
        table: RulesTable,
        book_of: Callable[..., RuleBook],
        queues: Collection[str] = (),
        valkey_lane: ValkeyLane | None,
        dynamodb_lane: DynamoDbLane | None,
        time_left: Callable[[], int],
        clock: Clock = system_clock,
    ) -> None:
        self._table = table
        self._book_of = book_of
        self._queues = queues
        self._valkey_lane = valkey_lane
        self._dynamodb_lane = dynamodb_lane
        self._time_left = time_left
        self._clock = clock

    def list(self, request: ListRules) -> Json:
        found = sorted(each for each in self._table.read_all() if each.scope.startswith(request.prefix))
        return {"rules": [_shown(each) for each in found[:MAX_RULES_LISTED]], "more": len(found) > MAX_RULES_LISTED}

    def get(self, request: OfScope) -> Json:
        for each in self._table.read_all():
            if each.scope == request.scope:
                return _shown(each)
        raise SubjectNotFound(f"There are no rules under {request.scope}.")

    def set(self, request: SetRules) -> Json:
        """Replace the rules of a scope."""
        scope = _checked_scope(request.scope)
        check_platform_names(_platforms_named(scope, request.rules))
        if unknown := [*unknown_queues(request.rules, self._queues)]:
            raise InvalidRules("\n".join(unknown))
        others = [each for each in self._table.read_all() if each.scope != scope]
        if scope.startswith(DOOR) and sum(other.scope.startswith(DOOR) for other in others) >= MAX_DOORS:
            raise InvalidInput(f"A stage has at most {MAX_DOORS} doors: delete one.")
        stored = [*others, StoredRules(scope, request.rules, 0, "", None)]
        self._check(scope, stored)
        version = self._table.put(
            scope, request.rules, by=request.by, at_ms=self._clock(), expected_version=request.expected_version
        )
        return {"version": version, "open": self._retime(scope), **self._longer_wait(scope, stored)}

    def delete(self, request: DeleteRules) -> Json:
        # Do not check the form of the scope, so that an item which was written into the table by hand can be deleted.
        version = self._table.delete(
            request.scope, by=request.by, at_ms=self._clock(), expected_version=request.expected_version
        )
        if version is None:
            raise SubjectNotFound(f"There are no rules under {request.scope}.")
        return {"deleted": request.scope, "version": version, "open": self._retime(request.scope)}

    def undo(self, request: OfScope) -> Json:
        """Bring back the rules of a scope before its last change, or delete the rules if there were none."""
        if not (change := self._table.last_change(request.scope)):
            raise SubjectNotFound(f"No earlier version of the rules under {request.scope} is known.")
        before, after = change
        of_present: Json = {"by": request.by, "scope": request.scope, "expectedVersion": after.version if after else 0}
        # The older rules are checked again, because other layers may have changed since.
        if before:
            done = self.set(read_request(SetRules, {**of_present, "rules": before.rules}))
        else:
            done = self.delete(read_request(DeleteRules, of_present))
        return {**done, "before": after and after.rules, "after": before and before.rules}

    def explain(self, request: ExplainRules) -> Json:
        conversation, stored = parse_conversation_id(request.conversation), self._table.read_all()
        book = self._book(stored)
        agent = request.agent or _agent_of(book, conversation)
        resolved, scopes = book.for_conversation(conversation, agent), scopes_of(conversation, agent)
        skipped = [{"layer": each.layer, "reason": each.reason} for each in resolved.skipped]
        wrong = [(each.scope, _problem(each)) for each in stored if each.scope in scopes]
        skipped += [{"layer": scope, "reason": problem} for scope, problem in wrong if problem]
        return {
            "conversation": str(conversation),
            "agent": agent,
            "rules": resolved.explain(),
            "waits": _waits(resolved.rules),
            "skipped": skipped,
        }

    def agent_of(self, conversation: ConversationId) -> str | None:
        """Return the agent of the conversation's account, or None if it has none, or if the rules cannot be read."""
        try:
            return _agent_of(self._book(self._table.read_all()), conversation)
        except SendFailed:
            return None

    def _check(self, scope: str, stored: Sequence[StoredRules]) -> None:
        """Raise InvalidRules unless the rules of `scope` are valid together with the layers beneath them.

        A layer may have rules for single platforms, so check every platform that one of these layers names.
        """
        read_scope(scope, stored[-1].rules)
        if scope.startswith(("account:", DOOR)):
            return
        book, conversation = self._book(stored), _example_of(scope)
        layers = book.layers_for(conversation, _agent_in(scope) or _agent_of(book, conversation))
        beneath = layers[: [layer.name for layer in layers].index(scope) + 1]
        for platform in _platforms(beneath, conversation):
            for skipped in resolve_rules(beneath, platform).skipped:
                if skipped.layer == scope:
                    raise InvalidRules(f"with the layers beneath, {platform or 'on any platform'}: {skipped.reason}")

    def _longer_wait(self, scope: str, stored: Sequence[StoredRules]) -> Json:
        """Return the `typingInferenceMs` beneath if it is longer than the scope's own `silenceMs`, else no field."""
        if "silenceMs" not in (own := stored[-1].rules) or "typingInferenceMs" in own:
            return {}
        rules = self._book(stored).for_conversation(_example_of(scope), _agent_in(scope)).rules
        return {"typingInferenceMs": rules.timing.typing_ms} if rules.timing.typing_ms else {}

    def _retime(self, scope: str) -> Json:
        """Retime the open buffers in the scope. Return the counts, `complete` (all were checked) and any `problem`."""
        counts = {"looked": 0, "retimed": 0}
        if scope.startswith(DOOR):
            return {**counts, "complete": True}  # a mapping affects only later messages
        try:
            complete = self._retime_all(scope, self._book(self._table.read_all()), counts)
        except (StoreError, SendFailed, InvalidId) as error:
            return {**counts, "complete": False, "problem": str(error)}  # do not raise: the change is stored
        return {**counts, "complete": complete}

    def _retime_all(self, scope: str, book: RuleBook, counts: dict[str, int]) -> bool:
        """Retime and count the open buffers in the scope. Return False if time ran out before all were checked."""
        for lane, name in self._open_conversations(scope):
            if self._time_left() < MIN_MS_LEFT_TO_RETIME:
                return False
            conversation = parse_conversation_id(name)
            agent = _agent_of(book, conversation)
            account = account_scope(conversation.platform, conversation.account)
            if scope in (*scopes_of(conversation, agent), account):
                rules = book.for_conversation(conversation, agent).rules
                # A learned wait depends on the text, which is not read here, so the buffer keeps the wait that it has.
                outcome = None if rules.effective_wait == "learned" else lane.retime_buffer(name, timing=rules.timing)
                # If the scope is one conversation, both lanes are tried, so count a window only if it exists.
                counts["looked"] += lane is self._valkey_lane or not isinstance(outcome, BufferEmpty)
                counts["retimed"] += isinstance(outcome, BufferRetimed)
        return True

    def _open_conversations(self, scope: str) -> Iterator[tuple[ValkeyLane | DynamoDbLane, str]]:
        """Yield the conversations that have messages and may be in the scope, each with its lane."""
        if scope.startswith("conversation:"):
            lanes = (self._valkey_lane, self._dynamodb_lane)
            yield from ((lane, scope.partition(":")[2]) for lane in lanes if lane)
            return
        if self._valkey_lane:
            for name in _open_in_valkey(self._valkey_lane):
                yield self._valkey_lane, name
        if self._dynamodb_lane:
            for name, _ in self._dynamodb_lane.open_windows(limit=MAX_WINDOWS_IN_A_LISTING):
                yield self._dynamodb_lane, name

    def _book(self, stored: Iterable[StoredRules]) -> RuleBook:
        return self._book_of(_FixedTable(stored), clock=self._clock)


def _open_in_valkey(store: Store) -> Iterator[str]:
    for shard in range(store.settings.shards):
        cursor: str | None = FIRST_PAGE
        while cursor:
            page = store.list_conversations(shard, cursor=cursor, limit=MAX_CONVERSATIONS_IN_A_PAGE)
            yield from page.conversations
            cursor = page.next_cursor


def _waits(rules: Rules) -> list[Json]:
    """Return how long example messages wait by these rules, for an author whose usual pauses are not known."""
    first, timing = Facts(0, 0, 1), rules.timing_of("A message")
    opened = due_after_message(first, timing, 0)
    examples = {
        "a message": opened,
        "another right after it": due_after_message(Facts(0, 0, 2, gap_ms=0, due=opened), timing, 0),
        "a pressed button": due_after_message(first, rules.timing_of(is_pressed=True), 0),
        "a file without a caption": due_after_message(first, rules.timing_of(is_media=True), 0),
        "a file with a pending transcript": due_after_message(first, rules.timing_of(is_pending=True), 0),
    }
    return [{"example": name, "waitMs": due.due_at_ms, "rule": due.rule} for name, due in examples.items()]


def _shown(stored: StoredRules) -> Json:
    shown = {
        "scope": stored.scope,
        "rules": stored.rules,
        "version": stored.version,
        "updatedBy": stored.updated_by,
        "updatedAt": stored.updated_at_ms,
    }
    problem = _problem(stored)
    return shown | ({"problem": problem} if problem else {})


def _problem(stored: StoredRules) -> str | None:
    """Return why the rules are not valid and so not in force, or None if they are valid."""
    try:
        read_scope(stored.scope, stored.rules)
    except InvalidRules as error:
        return str(error)
    return None


def _checked_scope(scope: str) -> str:
    if not _SCOPE.fullmatch(scope):
        raise InvalidInput(
            "A scope must be stage, tenant:<tenant>, agent:<tenant>/<agent>, conversation:<conversation id>,"
            " account:<platform>/<account> or door:<name>; inside a name, write %2F for a / and %25 for a %."
        )
    return scope


def _platforms_named(scope: str, rules: Mapping[str, Any]) -> Iterable[str]:
    kind, *parts = re.split("[:/]", scope)
    overrides = rules.get("platformOverrides")
    return [
        *({"account": parts[:1], "conversation": parts[1:2]}.get(kind, ())),
        *(overrides if isinstance(overrides, dict) else ()),
    ]


def _example_of(scope: str) -> ConversationId:
    """Return a conversation to which the layer of this scope applies."""
    kind, _, name = scope.partition(":")
    if kind == "conversation":
        return parse_conversation_id(name)
    (tenant, *_) = parse_conversation_id("/".join([name.partition("/")[0] or ANY, ANY, ANY, ANY]))
    return ConversationId(tenant, ANY, ANY, ANY)


def _agent_in(scope: str) -> str | None:
    kind, _, name = scope.partition(":")
    return parse_conversation_id(f"{name}/{ANY}/{ANY}").platform if kind == "agent" else None


def _agent_of(book: RuleBook, conversation: ConversationId) -> str | None:
    owner = book.owner_of(conversation.platform, conversation.account)
    return owner.agent if owner and owner.tenant == conversation.tenant else None


def _platforms(layers: Iterable[RuleLayer], conversation: ConversationId) -> Iterable[str]:
    if conversation.platform != ANY:
        return [conversation.platform]
    return ["", *sorted({platform for layer in layers for platform in layer.platform_overrides})]
