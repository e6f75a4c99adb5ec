"""The layer: what is in it, when it is built again, and that it has byte code."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from infra import layer
from infra.layer import LayerError, LayerPlatform, build_layer, lambda_interpreter, lambda_pins
from tests.support.wheel import write_wheel

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "lambdas" / "requirements.txt"
ROLES = [handler.parent.name for handler in sorted(ROOT.glob("lambdas/*/handler.py"))]
EM_AARCH64 = 183
# The libraries of Amazon Linux 2023, below the runtime.
GLIBC = (2, 34)
# importlib.util.MAGIC_NUMBER of every Python 3.13.
MAGIC_3_13 = (3571).to_bytes(2, "little") + b"\r\n"


@pytest.fixture
def requirements(tmp_path: Path) -> Path:
    path = tmp_path / "requirements.txt"
    path.write_text("thing==1.0\n")
    return path


@pytest.fixture
def installs(monkeypatch: pytest.MonkeyPatch) -> list[LayerPlatform]:
    """Unpack, in place of pip, a package with everything a wheel may bring."""
    calls: list[LayerPlatform] = []

    def install(requirements: Path, *, into: Path, platform: LayerPlatform) -> None:
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
    monkeypatch.setattr(layer, "lambda_interpreter", lambda: None)
    return calls


@pytest.fixture(scope="session")
def lambda_layer() -> Path:
    """Return the layer that is deployed, out of the cache that `make synth` uses."""
    return _build(cache=ROOT / ".build" / "layers")


def _build(*, cache: Path) -> Path:
    try:
        return build_layer(LOCK, platform=LayerPlatform.LAMBDA, cache=cache)
    except LayerError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no package index to build the layer from: {error}")


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_layer_holds_nothing_that_is_not_imported(
    tmp_path: Path, requirements: Path, installs: list[LayerPlatform]
) -> None:
    built = build_layer(requirements, platform=LayerPlatform.LAMBDA, cache=tmp_path / "layers")
    assert _files(built) == {"python/thing/__init__.py", "python/thing-1.0.dist-info/METADATA"}


def test_only_the_pins_that_hold_on_lambda_go_into_its_layer(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text(
        "# a comment\nalways==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n    # via something\n"
        "old==1.0 ; python_full_version < '3.11.3' \\\n    --hash=sha256:cc\n"
        "windows==1.0 ; sys_platform == 'win32' \\\n    --hash=sha256:dd\n"
        "arm==1.0 ; platform_machine == 'aarch64' \\\n    --hash=sha256:ee\n"
    )
    assert list(lambda_pins(lock)) == [
        "always==1.0 --hash=sha256:aa --hash=sha256:bb", "arm==1.0 --hash=sha256:ee",
    ]  # fmt: skip


@pytest.mark.parametrize("platform", LayerPlatform)
def test_a_package_that_is_not_the_one_that_was_locked_does_not_get_into_a_layer(
    platform: LayerPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, any file with the right name and version became a part of every function."""
    wheel = write_wheel(tmp_path / "index")
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheel.parent),
        "PIP_CONFIG_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    lock = tmp_path / "requirements.txt"
    locked = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock.write_text(f"thing==1.0 \\\n    --hash=sha256:{locked}\n")
    assert "python/thing.py" in _files(build_layer(lock, platform=platform, cache=tmp_path / "layers"))
    for other in (f"thing==1.0 \\\n    --hash=sha256:{'0' * 64}\n", "thing==1.0\n"):
        lock.write_text(other)
        with pytest.raises(LayerError, match=r"hash|HASH"):
            build_layer(lock, platform=platform, cache=tmp_path / "layers")


def test_a_failed_build_leaves_nothing_to_be_taken_for_a_layer(
    tmp_path: Path, requirements: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LayerError("no network")

    monkeypatch.setattr(layer, "_install", fail)
    with pytest.raises(LayerError):
        build_layer(requirements, platform=LayerPlatform.HOST, cache=tmp_path / "layers")
    assert not list((tmp_path / "layers").iterdir())


def test_the_binaries_of_the_layer_run_on_lambda(lambda_layer: Path) -> None:
    binaries = list(lambda_layer.rglob("*.so*"))
    assert {binary.parent.name for binary in binaries} == {"hiredis", "pydantic_core"}
    for binary in binaries:
        content = binary.read_bytes()
        assert content[:4] == b"\x7fELF"
        assert int.from_bytes(content[18:20], "little") == EM_AARCH64
        assert binary.name.endswith(".cpython-313-aarch64-linux-gnu.so")
        needed = {tuple(map(int, version.split(b"."))) for version in re.findall(rb"GLIBC_([\d.]+)\0", content)}
        assert needed
        assert max(needed) <= GLIBC


def test_every_package_of_the_layer_is_imported_by_a_handler(lambda_layer: Path) -> None:
    packages = {path.stem for path in (lambda_layer / "python").iterdir() if path.suffix != ".dist-info"}
    handlers = ", ".join(f"lambdas.{role}.handler" for role in ROLES)
    run = subprocess.run(
        [sys.executable, "-c", f"import sys, {handlers}; print(*sys.modules)"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert packages - {"__pycache__"} <= {module.partition(".")[0] for module in run.stdout.split()}


def test_the_byte_code_of_the_layer_is_read_by_lambda_without_a_look_at_the_source(lambda_layer: Path) -> None:
    if lambda_interpreter() is None:
        pytest.skip("no Python 3.13 on this machine to write byte code with; the CI job on 3.13 has one")
    sources = set(lambda_layer.rglob("*.py"))
    compiled = {path.parent.parent / f"{path.name.partition('.')[0]}.py": path for path in lambda_layer.rglob("*.pyc")}
    assert compiled.keys() == sources
    assert {path.read_bytes()[:8] for path in compiled.values()} == {MAGIC_3_13 + b"\x01\0\0\0"}
