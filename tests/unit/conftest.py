from typing import Any

import pytest

from tests.support.engine import Engine
from tests.support.ingest_scene import Scene
from tests.support.responder import Tables, tables


@pytest.fixture
def scene(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(fake, monkeypatch)


@pytest.fixture(scope="module")
def new_table(database: Any) -> Tables:
    return tables(database)
