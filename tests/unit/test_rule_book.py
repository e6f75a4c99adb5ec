"""The rules in force: for whom, since when, and what happens to rules that are wrong."""

import threading
from typing import Any

import pytest

from message_buffer.errors import InvalidRules, SendFailed
from message_buffer.limits import MAX_QUOTA, MIN_MS_BETWEEN_RULES_CHECKS
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.rules.quota import Charge, Quota
from message_buffer.rules.rule_book import RuleBook, account_scope, read_scope, scopes_of
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.engine import ManualClock
from tests.support.fakes import FakeRules, RecordedTelemetry

DEFAULT_QUOTA = Quota(600, 60)
ACME = ConversationId("acme", "whatsapp", "1", "ann")


class Scene:
    def __init__(self, *, deployed: dict[str, Any] | None = None) -> None:
        self.table, self.telemetry, self.clock = FakeRules(), RecordedTelemetry(), ManualClock()
        self.book = RuleBook(self.table, deployed or {}, self.telemetry, quota=DEFAULT_QUOTA, clock=self.clock)

    def silence_ms(self, conversation: ConversationId = ACME, agent: str | None = None) -> int:
        return self.book.for_conversation(conversation, agent).rules.silence_ms

    def later(self, ms: int = MIN_MS_BETWEEN_RULES_CHECKS) -> None:
        self.clock.advance(ms)


@pytest.fixture
def scene() -> Scene:
    return Scene(deployed={"silenceMs": 1_100})


def test_the_nearest_layer_wins_and_is_named_with_its_version(scene: Scene) -> None:
    layers = {"stage": 1_200, "tenant:acme": 1_300, "agent:acme/support": 1_400, f"conversation:{ACME}": 1_500}
    assert scene.silence_ms() == 1_100
    for scope, silence_ms in layers.items():
        scene.table.write(scope, {"silenceMs": silence_ms})
        scene.later()
        assert scene.silence_ms(agent="support") == silence_ms
    found = scene.book.for_conversation(ACME, "support").explain()["silenceMs"]
    assert found == {"value": 1_500, "layer": f"conversation:{ACME}", "via": "set here", "version": 4}
    names = [layer.name for layer in scene.book.layers_for(ACME, "support")]
    assert names == ["deployed", *layers]


@pytest.mark.case(35)
def test_rules_of_one_are_not_those_of_another(scene: Scene) -> None:
    scene.table.write("tenant:acme", {"platformOverrides": {"whatsapp": {"silenceMs": 9}}})
    scene.table.write("agent:acme/support", {"silenceMs": 8})
    assert scene.silence_ms() == 9
    others = [ACME._replace(tenant="default"), ACME._replace(platform="telegram")]
    assert [scene.silence_ms(other) for other in others] == [1_100, 1_100]
    assert scene.silence_ms(ACME._replace(platform="generic"), "support") == 8
    assert scene.silence_ms(ACME._replace(tenant="other"), "support") == 1_100


# -- how fast, and how often -----------------------------------------------------------------------


@pytest.mark.parametrize("after_ms", range(0, MIN_MS_BETWEEN_RULES_CHECKS, 500))
def test_a_change_is_live_within_ten_seconds_wherever_between_two_looks_it_comes(scene: Scene, after_ms: int) -> None:
    scene.silence_ms()
    scene.later(after_ms)
    scene.table.write("stage", {"silenceMs": 7})
    waited_ms = 0
    while scene.silence_ms() != 7:
        scene.later(100)
        waited_ms += 100
        assert waited_ms <= 10_000


def test_the_version_is_asked_for_at_most_every_five_seconds_and_the_rest_when_it_changed(scene: Scene) -> None:
    for _ in range(60):
        for _ in range(100):
            scene.silence_ms()
            scene.book.owner_of("whatsapp", "1")
        scene.later(1_000)
    assert scene.table.reads.count("version") == 12
    assert scene.table.reads.count("all") == 1


def test_a_thousand_first_messages_at_once_are_two_reads(scene: Scene) -> None:
    scene.table.write("stage", {"silenceMs": 7})
    ready = threading.Barrier(50)
    found: list[int] = []

    def many() -> None:
        ready.wait()
        found.extend(scene.silence_ms(ACME._replace(user=f"u{n}")) for n in range(20))

    threads = [threading.Thread(target=many) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [7] * 1_000
    assert scene.table.reads == ["version", "all"]


def test_a_clock_that_was_set_back_does_not_keep_old_rules(scene: Scene) -> None:
    scene.silence_ms()
    scene.table.write("stage", {"silenceMs": 7})
    scene.later(-3_600_000)
    assert scene.silence_ms() == 7


# -- what is wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        None, [], "silenceMs", {"silenceMs": "7"}, {"silenceMs": 40_000}, {"silenceMs": 10**400}, {"name": "stage"},
        {"platformOverrides": {"whatsapp": 7}},
    ],
)  # fmt: skip
def test_rules_that_are_wrong_are_skipped_and_counted_and_the_next_layer_applies(scene: Scene, wrong: Any) -> None:
    scene.table.write("stage", {"silenceMs": 1_200})
    scene.table.write("tenant:acme", wrong)
    scene.table.write("agent:acme/support", {"maxMessages": 5})
    rules = scene.book.for_conversation(ACME, "support").rules
    assert (rules.silence_ms, rules.max_messages) == (1_200, 5)
    assert scene.telemetry.counts == {"RulesSkipped": 1}
    assert [line["layer"] for line in scene.telemetry.said("rules skipped")] == ["tenant:acme"]


# -- the table away --------------------------------------------------------------------------------


def test_without_the_table_the_deployed_rules_stand(scene: Scene) -> None:
    scene.table.is_away = True
    assert scene.silence_ms() == 1_100
    assert scene.telemetry.counts == {"TablesUnreachable": 1}


def test_as_long_as_the_table_was_never_read_nobody_knows_whose_an_account_is(scene: Scene) -> None:
    scene.table.write("account:whatsapp/1", {"tenant": "acme"})
    scene.table.is_away = True
    for _ in range(3):
        with pytest.raises(SendFailed, match="never reached"):
            scene.book.owner_of("whatsapp", "1")
        scene.later(5_000)
    assert len(scene.table.reads) == 3, "asked again at once when it may"
    scene.table.is_away = False
    owner = scene.book.owner_of("whatsapp", "1")
    assert owner is not None
    assert owner.tenant == "acme"
    scene.table.is_away = True
    scene.later(3_600_000)
    assert scene.book.owner_of("whatsapp", "1") == owner


def test_a_table_that_stays_away_is_asked_less_often_and_found_again(scene: Scene) -> None:
    scene.silence_ms()
    scene.table.reads.clear()
    scene.table.is_away = True
    for _ in range(600):
        scene.silence_ms()
        scene.later(1_000)
    assert 20 <= len(scene.table.reads) <= 24
    scene.table.is_away = False
    scene.table.write("stage", {"silenceMs": 7})
    scene.later(30_000)
    assert scene.silence_ms() == 7


# -- quotas ----------------------------------------------------------------------------------------


def test_without_a_rule_a_message_is_charged_to_its_account_by_the_stages_quota(scene: Scene) -> None:
    assert scene.book.charge_for(ACME) == Charge((("whatsapp/1", DEFAULT_QUOTA),))


def test_a_quota_of_an_account_takes_the_place_of_the_stages_field_by_field(scene: Scene) -> None:
    scene.table.write(account_scope("whatsapp", "1"), {"tenant": "acme", "quota": {"messagesPerMinute": 5}})
    assert scene.book.charge_for(ACME) == Charge((("whatsapp/1", Quota(5, 60)),), is_exact=True)
    other = ACME._replace(account="2")
    assert scene.book.charge_for(other) == Charge((("whatsapp/2", DEFAULT_QUOTA),))


def test_a_tenants_quota_comes_on_top_of_the_accounts(scene: Scene) -> None:
    scene.table.write("tenant:acme", {"silenceMs": 900, "quota": {"conversationsPerMinute": 7}})
    found = scene.book.charge_for(ACME)
    assert found == Charge((("whatsapp/1", DEFAULT_QUOTA), ("acme", Quota(MAX_QUOTA, 7))), is_exact=True)
    assert scene.silence_ms() == 900
    other = scene.book.charge_for(ACME._replace(tenant="other"))
    assert other == Charge((("whatsapp/1", DEFAULT_QUOTA),))


def test_names_are_escaped_so_that_no_two_share_a_quota(scene: Scene) -> None:
    scene.table.write("tenant:a%2Fb", {"quota": {"messagesPerMinute": 1}})
    found = scene.book.charge_for(ConversationId("a/b", "generic", "c/d", "u"))
    assert [name for name, _ in found.quotas] == ["generic/c%2Fd", "a%2Fb"]


@pytest.mark.parametrize("scope", ["stage", "agent:acme/a", f"conversation:{ACME}"])
def test_only_tenants_and_accounts_have_a_quota(scope: str) -> None:
    with pytest.raises(InvalidRules, match="quota: unknown field; remove it, or set it for the tenant or the account"):
        read_scope(scope, {"quota": {"messagesPerMinute": 1}})


@pytest.mark.parametrize("scope", ["tenant:acme", "account:generic/shop"])
def test_a_wrong_quota_is_refused_with_the_field_and_the_fix(scope: str) -> None:
    with pytest.raises(InvalidRules, match=f"messagesPerMinute: got 0; use a whole number from 1 to {MAX_QUOTA}"):
        read_scope(scope, {"quota": {"messagesPerMinute": 0}})
    with pytest.raises(InvalidRules, match="quota: got 5; use an object of quotas"):
        read_scope(scope, {"quota": 5})


def test_a_sender_who_invents_accounts_of_a_door_stays_its_owners_customer_and_within_its_quota(scene: Scene) -> None:
    scene.table.write("account:custom/waha", {"tenant": "acme", "agent": "sales", "quota": {"messagesPerMinute": 5}})
    scene.table.write("account:custom/waha:known", {"tenant": "other"})
    scene.table.write("account:custom/waha:large", {"tenant": "other", "quota": {"messagesPerMinute": 7}})

    def found(account: str) -> tuple[str, dict[str, int]]:
        owner = scene.book.owner_of("custom", account)
        charge = scene.book.charge_for(ConversationId("acme", "custom", account, "ada"))
        assert owner is not None
        return owner.tenant, {name: quota.messages_per_minute for name, quota in charge.quotas}

    assert found("waha") == found("waha:invented") == ("acme", {"custom/waha": 5})
    assert found("waha:known") == ("other", {"custom/waha": 5})
    assert found("waha:large") == ("other", {"custom/waha:large": 7, "custom/waha": 5})
    assert scene.book.owner_of("custom", "wahaha") is None


def test_wrong_rules_of_the_deployed_stage_leave_the_defaults() -> None:
    scene = Scene(deployed={"silenceMs": -1})
    assert scene.book.for_conversation(ACME._replace(platform="generic")).rules == Rules()
    assert scene.telemetry.counts == {"RulesSkipped": 1}


def test_names_with_slashes_make_no_scope_of_somebody_else() -> None:
    assert (
        scopes_of(ConversationId("a/b", "p", "1", "u"), "c")[2]
        != scopes_of(ConversationId("a", "p", "1", "u"), "b/c")[2]
    )
    assert account_scope("twilio", "a/b") == "account:twilio/a%2Fb"
