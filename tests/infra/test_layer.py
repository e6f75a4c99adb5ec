from pathlib import Path

import pytest

from infra import layer
from infra.layer import LayerError, Platform, build_layer


@pytest.fixture
def requirements(tmp_path: Path) -> Path:
    path = tmp_path / "requirements.txt"
    path.write_text("thing==1.0\n")
    return path


@pytest.fixture
def installs(monkeypatch: pytest.MonkeyPatch) -> list[Platform]:
    """Stands for pip: unpacks a package with everything a wheel may bring."""
    calls: list[Platform] = []

    def install(requirements: Path, *, into: Path, platform: Platform) -> None:
        calls.append(platform)
        for name in (
            "thing/__init__.py",
            "thing/stub.pyi",
            "thing/tests/test_thing.py",
            "thing/__pycache__/__init__.cpython-39.pyc",
            "bin/thing",
            "thing-1.0.dist-info/METADATA",
            "thing-1.0.dist-info/RECORD",
            "thing-1.0.dist-info/licenses/LICENSE",
        ):
            path = into / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    monkeypatch.setattr(layer, "_install", install)
    return calls


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_layer_holds_nothing_that_is_not_imported(
    tmp_path: Path, requirements: Path, installs: list[Platform]
) -> None:
    built = build_layer(requirements, platform=Platform.LAMBDA, cache=tmp_path / "layers")
    assert _files(built) == {"python/thing/__init__.py", "python/thing-1.0.dist-info/METADATA"}


def test_the_same_layer_is_built_once(tmp_path: Path, requirements: Path, installs: list[Platform]) -> None:
    first = build_layer(requirements, platform=Platform.LAMBDA, cache=tmp_path / "layers")
    assert build_layer(requirements, platform=Platform.LAMBDA, cache=tmp_path / "layers") == first
    assert installs == [Platform.LAMBDA]


def test_other_requirements_or_another_platform_make_another_layer(
    tmp_path: Path, requirements: Path, installs: list[Platform]
) -> None:
    cache = tmp_path / "layers"
    built = {build_layer(requirements, platform=platform, cache=cache) for platform in Platform}
    requirements.write_text("thing==1.1\n")
    built.add(build_layer(requirements, platform=Platform.LAMBDA, cache=cache))
    assert len(built) == 3


def test_a_layer_for_the_host_brings_byte_code_that_outlives_unpacking(
    tmp_path: Path, requirements: Path, installs: list[Platform]
) -> None:
    built = build_layer(requirements, platform=Platform.HOST, cache=tmp_path / "layers")
    (compiled,) = built.rglob("*.pyc")
    flags = int.from_bytes(compiled.read_bytes()[4:8], "little")
    assert flags == 0b01, "checked by hash, and not at all while running"


def test_a_failed_build_leaves_nothing_to_be_taken_for_a_layer(
    tmp_path: Path, requirements: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LayerError("no network")

    monkeypatch.setattr(layer, "_install", fail)
    with pytest.raises(LayerError):
        build_layer(requirements, platform=Platform.HOST, cache=tmp_path / "layers")
    assert not list((tmp_path / "layers").iterdir())
