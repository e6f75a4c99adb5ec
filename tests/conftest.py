import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from aws_lambda_powertools.metrics import Metrics
from fakeredis import FakeServer, FakeStrictRedis

from message_buffer.lanes.valkey.connection import connect
from message_buffer.settings import ConnectionSettings
from tests.support.cases import markers, numbered
from tests.support.engine import Engine, monitored
from tests.support.local_stage import WHATSAPP_TOPIC, LocalStage, local_stage
from tests.support.valkey_server import STRICT_SHEBANG, ValkeyMissing, ValkeyServer
from tests.support.window import WindowScene, dynamodb, make_message_table

# The same examples are drawn each time, so a red test is due to the change. The nightly run draws new ones.
for name, examples in (("test", 50), ("check", 200)):
    hypothesis.settings.register_profile(name, max_examples=examples, deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("nightly", max_examples=2000, deadline=None, print_blob=True)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "test")
hypothesis.settings.load_profile(PROFILE)

# Their tests need a stage. `make test` runs only those that are marked `smoke`.
ON_A_STAGE = {"e2e", "chaos"}
# A change seldom breaks what these files test, so only `make check` runs them.
CHECKED = {
    "test_aws_own_lists", "test_bench_document", "test_bench_figures", "test_bench_quick", "test_bench_workload",
    "test_cases", "test_crash_loops", "test_documents", "test_examples", "test_import_budget", "test_layer",
    "test_nag_and_lint", "test_numbers", "test_provisioned_instances", "test_references",
    "test_sending_document", "test_source_rules", "test_table_service", "test_transitions",
}  # fmt: skip

WHAT_NIGHTLY_FINDS = (
    "These examples were drawn at random, and the next run draws others. What a property test found tonight becomes an"
    " explicit example of it (@example, FOUND or HISTORIES), together with the correction: see CONTRIBUTING.md."
)


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in markers().items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Add the markers of tests/CASES.md, so that `-m case_16` selects tests, and those by which make chooses."""
    for name in numbered(item.iter_markers()):
        item.add_marker(name)
    if item.path.parent.name in ON_A_STAGE:
        item.add_marker("stage")
    if item.path.stem in CHECKED:
        item.add_marker("check")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if PROFILE == "nightly" and terminalreporter.stats.get("failed"):
        terminalreporter.section("nightly")
        terminalreporter.write_line(WHAT_NIGHTLY_FINDS)


@pytest.fixture(autouse=True)
def no_metrics_of_another_test() -> Iterator[None]:
    """Clear the metrics: Powertools keeps them for the whole process until they are flushed."""
    yield
    Metrics().clear_metrics()


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """Yield one strict one-node cluster for all tests of this worker; each test begins with it empty."""
    try:
        server = ValkeyServer().start()
    except ValkeyMissing as error:
        # On a laptop, the other tests can still run; in CI, a test that could not run must not pass.
        if os.environ.get("CI"):
            pytest.fail(f"no Valkey to test on: {error}")
        pytest.skip(f"no Valkey to test on: {error}")
    yield server
    server.stop()


@pytest.fixture
def unwatched(valkey: ValkeyServer) -> Iterator[Engine]:
    """Yield the strict engine without MONITOR, for a test that makes many thousand calls."""
    admin = valkey.admin()
    admin.flushall()
    client = connect(ConnectionSettings(valkey.url, answer_timeout_ms=10_000))
    yield Engine(client, admin, shebang=STRICT_SHEBANG)
    client.close()
    admin.close()


@pytest.fixture
def engine(unwatched: Engine) -> Iterator[Engine]:
    """Yield the engine on the strict cluster, and fail if a script touched a key that it did not declare."""
    with monitored(unwatched.admin) as watch:
        yield unwatched
    assert watch.undeclared() == []


@pytest.fixture
def fake() -> Iterator[Engine]:
    """Yield the engine on fakeredis: quick, and without a server. It is not the judge: see tests/README.md."""
    client = FakeStrictRedis(server=FakeServer())
    yield Engine(client, client)
    client.close()


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStage]:
    """Yield one local stage for the tests that use only HTTP and the bus: one for `stage`, one for `chaos-stage`."""
    with local_stage(tmp_path_factory.mktemp("stage") / "home") as running:
        yield running


@pytest.fixture(scope="session")
def dynamodb_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStage]:
    """Yield a local stage without Valkey; its tests are in the xdist group `window-stage`."""
    home = tmp_path_factory.mktemp("window-stage") / "home"
    with local_stage(home, lane="dynamodb", queues={"default": {}}, whatsapp_topic=WHATSAPP_TOPIC) as running:
        yield running


@pytest.fixture(scope="module")
def database() -> Iterator[Any]:
    """Yield DynamoDB in this process, for the tests of a module."""
    with dynamodb() as client:
        yield client


@pytest.fixture
def window(database: Any) -> WindowScene:
    make_message_table(database)
    return WindowScene()
