"""The code asset of all functions contains only files that a function uses."""

import subprocess
import sys
from pathlib import Path

import aws_cdk as cdk
import pytest
from aws_cdk import aws_lambda as lambda_

from infra.function import ROOMS, source_code

pytestmark = pytest.mark.xdist_group("synth")

ROOT = Path(__file__).parents[2]
HANDLERS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for room in ROOMS
    for path in sorted((ROOT / room).rglob("handler.py"))
]


@pytest.fixture(scope="session")
def asset(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    app = cdk.App(outdir=str(tmp_path_factory.mktemp("out")))
    lambda_.Function(
        cdk.Stack(app, "Stack"),
        "Function",
        runtime=lambda_.Runtime.PYTHON_3_13,
        handler="lambdas.ingest.handler.handler",
        code=source_code(ROOT),
    )
    (folder,) = (path for path in Path(app.synth().directory).glob("asset.*") if path.is_dir())
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# Only a stage with doors imports these, at the first webhook of a door, since they would make each cold start longer.
IMPORTED_LATER = {
    "lambdas/ingest/platforms/custom.py",
    *(f"message_buffer/rules/{name}.py" for name in ("doors", "door_expressions", "door_reading")),
}


def test_every_module_of_the_asset_is_imported_by_a_handler(asset: set[str]) -> None:
    handlers = ", ".join(HANDLERS)
    ours = f"(module.__file__ for name, module in sys.modules.items() if name.partition('.')[0] in {ROOMS})"
    run = subprocess.run(
        [sys.executable, "-c", f"import sys, {handlers}; print(*{ours}, sep='\\n')"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    imported = {Path(path).relative_to(ROOT).as_posix() for path in run.stdout.splitlines()}
    assert {name for name in asset if name.endswith(".py")} == imported | IMPORTED_LATER
    assert not imported & IMPORTED_LATER


def test_beside_the_modules_the_asset_holds_the_scripts_and_nothing_else(asset: set[str]) -> None:
    scripts = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("lua/**/*.lua")}
    assert "lua/include/start_or_wake.lua" in scripts
    assert {name for name in asset if not name.endswith(".py")} == scripts
