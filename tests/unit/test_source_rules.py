"""Rules about the source text that the import rules cannot express.

Each rule is a function from a module's text to the places that break it, so that the rules are tested too.
"""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ENVIRONMENT = {"os.environ", "os.environb", "os.getenv", "os.getenvb"}
WALL_CLOCK = {
    "time.time",
    "time.time_ns",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "datetime.date.today",
}
# Everybody on the machine can read the command line of a browser, in which the console's address would show its token.
BROWSERS = {"webbrowser.open", "webbrowser.open_new", "webbrowser.open_new_tab", "webbrowser.get"}
SLEEP = {"time.sleep", "asyncio.sleep", "sleep"}

# `{b` as the beginning of a hash tag: "{b3}", f"{{b{shard}}}", "{b" + shard. Neither a format field
# ("{batch}") nor the way script headers spell the tag ("{b<shard>}").
HASH_TAG = re.compile(r"\{b(?![A-Za-z_}<])")

Rule = Callable[[str], list[str]]


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Return what each imported name stands for: `{"t": "time", "now_ns": "time.time_ns"}`."""
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            plain = [alias.name.partition(".")[0] for alias in node.names if not alias.asname]
            imported |= {name: name for name in plain}
            imported |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return imported


def names_used(source: str) -> Iterator[tuple[int, str]]:
    """Yield each name and attribute that a module reads, with its line, spelled out: `t.time` as `time.time`."""
    tree = ast.parse(source)
    imported = imported_names(tree)

    def spelled_out(node: ast.expr) -> str:
        match node:
            case ast.Name(id=name):
                return imported.get(name, name)
            case ast.Attribute(value=value, attr=attribute):
                return f"{spelled_out(value)}.{attribute}"
        return "?"

    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.lineno, spelled_out(node)


def uses_of(forbidden: set[str]) -> Rule:
    def rule(source: str) -> list[str]:
        return [f"line {line}: {name}" for line, name in names_used(source) if name in forbidden]

    return rule


def hash_tags(source: str) -> list[str]:
    tree = ast.parse(source)
    prose = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in prose:
            continue
        text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
        if isinstance(text, str) and HASH_TAG.search(text):
            found.append(f"line {node.lineno}: {text!r}")
    return found


DEPLOYED = ["message_buffer", "lambdas"]


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def offences(rule: Rule, *, folders: list[str], allowed_in: tuple[str, ...] = ()) -> dict[str, list[str]]:
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for folder in folders
        for path in python_files(folder)
    }
    broken = {name: rule(text) for name, text in texts.items() if name not in allowed_in}
    return {name: places for name, places in broken.items() if places}


def pins(requirements: str) -> dict[str, str]:
    """Return the pinned version and marker of each package."""
    lines = (line for line in requirements.splitlines() if line and not line.lstrip().startswith("#"))
    return {name: version for name, _, version in (line.partition("==") for line in lines)}


def test_the_environment_is_read_only_in_two_modules() -> None:
    assert not offences(
        uses_of(ENVIRONMENT),
        folders=DEPLOYED,
        allowed_in=(
            "message_buffer/aws/environment.py",
            "message_buffer/settings.py",
        ),
    )


def test_the_wall_clock_is_read_only_in_clock() -> None:
    assert not offences(uses_of(WALL_CLOCK), folders=DEPLOYED, allowed_in=("message_buffer/clock.py",))


def test_no_program_opens_a_browser() -> None:
    assert not offences(uses_of(BROWSERS), folders=["bufferctl", "tools"])


def test_a_hash_tag_is_written_only_in_keys() -> None:
    assert not offences(hash_tags, folders=DEPLOYED, allowed_in=("message_buffer/lanes/valkey/keys.py",))


def test_no_unit_or_integration_test_sleeps() -> None:
    assert not offences(uses_of(SLEEP), folders=["tests/unit", "tests/integration"])


def test_the_lambda_layer_has_the_versions_that_were_tested() -> None:
    locked = pins((ROOT / "requirements.txt").read_text("utf-8"))
    layer = pins((ROOT / "lambdas/requirements.txt").read_text("utf-8"))
    assert {"aws-lambda-powertools", "hiredis", "pydantic", "redis"} <= layer.keys()
    assert layer.items() <= locked.items()


def test_the_lambda_layer_leaves_out_what_the_runtime_brings() -> None:
    layer = pins((ROOT / "lambdas/requirements.txt").read_text("utf-8"))
    assert layer.keys().isdisjoint({"boto3", "botocore", "s3transfer"})


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (uses_of(ENVIRONMENT), "import os\nos.environ['A']"),
        (uses_of(ENVIRONMENT), "from os import environ as e\ne.get('A')"),
        (uses_of(WALL_CLOCK), "import time as t\nt.time()"),
        (uses_of(WALL_CLOCK), "def f():\n    import datetime as dt\n    return dt.datetime.now(dt.UTC)"),
        (uses_of(SLEEP), "from time import sleep\nsleep(1)"),
        (uses_of(SLEEP), "import asyncio\nasync def f():\n    await asyncio.sleep(0)"),
        (hash_tags, "tag = f'{{b{shard}}}:pending'"),
        (hash_tags, "tag = b'{b0}:pending'"),
    ],
)
def test_a_rule_finds_what_it_forbids(rule: Rule, source: str) -> None:
    assert rule(source)
