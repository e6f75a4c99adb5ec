"""Every script and the lease, without a server: what `pytest tests/unit tests/integration -k fake` runs.

Fakeredis does not detect the mistakes that would hurt most, so the strict server judges all other tests of the scripts.
"""

import pytest

from message_buffer.lanes import outcomes as o
from message_buffer.lanes.valkey.scripts import LUA_DIRECTORY
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.emission import Bus, run_until_idle
from tests.support.engine import SETTINGS, Engine
from tests.support.outcomes import same
from tests.support.scenes import SCENES

NAMES = {path.stem for path in LUA_DIRECTORY.glob("*.lua")}


def test_every_script_runs_in_every_state_on_fakeredis(fake: Engine) -> None:
    ran: set[str] = set()
    for scene in SCENES:
        fake.admin.flushall()
        scene.state(fake)
        store = fake.another_store(new_call_id=lambda: "this call")
        first = scene.call(store, fake)
        assert same(scene.call(store, fake), scene.again(first)), scene.name
        ran |= store._loaded.keys()
    assert ran == NAMES


def test_one_processor_at_a_time_has_the_lease_on_fakeredis(fake: Engine) -> None:
    store, expires_at_ms = fake.store, fake.clock() + SETTINGS.lease_ms
    assert same(store.acquire_lease(0, "one"), o.LeaseAcquired(expires_at_ms))
    assert same(store.acquire_lease(0, "other"), o.LeaseTaken(expires_at_ms))
    fake.clock.advance(SETTINGS.lease_ms)
    assert same(store.renew_lease(0, "one"), o.LeaseLost())
    assert isinstance(store.acquire_lease(0, "other"), o.LeaseAcquired)
    assert same(store.claim_due(0, "one"), o.LeaseLost())
    assert isinstance(store.release_lease(0, "other", reason="idle"), o.LeaseReleased)


def test_a_dead_processors_claim_comes_out_on_fakeredis(fake: Engine) -> None:
    fake.send("c", "m1", rules=Rules(priority="vip"))
    assert fake.claim() == ["c"]
    fake.clock.advance(SETTINGS.claim_ms)
    assert fake.store.recover_expired(0).conversations == ["c"]
    bus = Bus()
    run_until_idle(fake, bus)
    assert bus.batches("c") == [["m1"]]


def test_what_k_fake_chooses_needs_no_server(request: pytest.FixtureRequest) -> None:
    chosen = [item for item in request.session.items if "fake" in item.nodeid.lower()]
    assert [item.nodeid for item in chosen if "valkey" in getattr(item, "fixturenames", ())] == []
