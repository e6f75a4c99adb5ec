"""The documents name only what exists: links and their anchors, tests, files, settings, metrics and log lines."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from bufferctl.lateness import OF_CONVERSATION, OF_SHARD
from infra.function import ROOMS
from infra.settings_and_defaults import ResponderConfig, StageConfig
from message_buffer.rules.rules_and_defaults import RULE_FIELDS, Rules

ROOT = Path(__file__).parents[2]
# Made by tools, and in no clone.
BUILT = {".venv", ".venvs", ".local", ".build", ".pytest_cache", "node_modules", "cdk.out"}
DOCUMENTS = sorted(path for path in ROOT.rglob("*.md") if not BUILT & set(path.relative_to(ROOT).parts))
# Decision records and the changelog are not edited when a file or a test gets another name.
LIVING = [
    path
    for path in DOCUMENTS
    if not (path.parent.name == "adr" and path.name[0].isdigit()) and path.name != "CHANGELOG.md"
]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
FILE = re.compile(r"`(\w[\w.-]*(?:/[\w.-]+)+\.(?:py|lua|md|toml|json|mjs|yml))`")
LEVELS = {"info": "INFO", "warn": "WARNING", "crash": "ERROR", "failed": "WARNING, ERROR"}
NO_DIFFERENCE: dict[str, list[str]] = {"lacks": [], "in vain": [], "twice": []}
COUNTS = {"count", "count_by", "measure_ms"}


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def without_code_blocks(text: str) -> str:
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(document: Path) -> set[str]:
    """Return the anchors that GitHub gives the document's headings."""
    headings = re.findall(r"^#+ (.+)$", without_code_blocks(document.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken_links(document: Path, text: str) -> list[str]:
    broken = []
    for file, anchor in LINK.findall(without_code_blocks(text)):
        target = (document.parent / file).resolve() if file else document
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(f"{file}#{anchor}" if anchor else file)
    return broken


def names_of_tests() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        found.add(path.stem)
        found |= set(re.findall(r"def (test_\w+)\(", path.read_text("utf-8")))
    return found


def missing_tests(text: str, there: set[str]) -> list[str]:
    named = re.findall(r"`(test_\w+?)(_?…|\.py|)`", text)
    return [
        name
        for name, rest in named
        if not (any(each.startswith(name) for each in there) if "…" in rest else name in there)
    ]


def settings() -> set[str]:
    """Return the names of a stage's settings, those of a group as `group.name`."""
    names = set(StageConfig.model_fields) | {f"responder.{name}" for name in ResponderConfig.model_fields}
    for group, field in StageConfig.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            names |= {f"{group}.{name}" for name in field.annotation.model_fields}
    return names


def told() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return the metrics of the functions with their ways of counting, and their log lines with their levels."""
    metrics: dict[str, set[str]] = defaultdict(set)
    lines: dict[str, set[str]] = defaultdict(set)
    for call in calls_of_telemetry():
        name = call.args[0]
        assert isinstance(call.func, ast.Attribute)
        if call.func.attr == "count_all":
            keys = name.keys if isinstance(name, ast.Dict) else []
            metrics.update({str(key.value): {"count"} for key in keys if isinstance(key, ast.Constant)})
            continue
        assert isinstance(name, ast.Constant), f"a name that is put together cannot be documented: {ast.unparse(call)}"
        if call.func.attr in COUNTS:
            metrics[str(name.value)].add(call.func.attr)
        elif call.func.attr in LEVELS:
            lines[str(name.value)].update(LEVELS[call.func.attr].split(", "))
    return metrics, lines


def calls_of_telemetry() -> Iterator[ast.Call]:
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.args:
                continue
            if ast.unparse(call.func.value).endswith(("telemetry", "unauthenticated")) and call.func.attr in COUNTS | {
                "count_all"
            } | set(LEVELS):
                yield call


def difference(listed: list[str], there: Iterable[str]) -> dict[str, list[str]]:
    """Return what the list lacks, what it names in vain, and what it names more than once."""
    lacks, in_vain = sorted(set(there) - set(listed)), sorted(set(listed) - set(there))
    return {"lacks": lacks, "in vain": in_vain, "twice": sorted({each for each in listed if listed.count(each) > 1})}


def section(document: str, title: str) -> str:
    return (ROOT / document).read_text("utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]


def table_of(document: str, title: str) -> list[list[str]]:
    """Return the cells of the table in a section of a document, without its head."""
    _, _, *lines = [line for line in section(document, title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_link_leads_somewhere(document: Path) -> None:
    assert broken_links(document, document.read_text("utf-8")) == []


@pytest.mark.parametrize("document", LIVING, ids=name_of)
def test_every_test_that_a_document_names_is_there(document: Path) -> None:
    assert missing_tests(document.read_text("utf-8"), names_of_tests()) == []


@pytest.mark.parametrize("document", LIVING, ids=name_of)
def test_every_file_that_a_document_names_is_there(document: Path) -> None:
    named = FILE.findall(document.read_text("utf-8"))
    places = [ROOT, document.parent, ROOT / "message_buffer", ROOT / "lambdas/ingest", ROOT / "tests"]
    assert [file for file in named if not any((place / file).exists() for place in places)] == []


@pytest.mark.parametrize("document", LIVING, ids=name_of)
def test_every_setting_that_a_document_names_is_one(document: Path) -> None:
    groups = "|".join(sorted({name.partition(".")[0] for name in settings() if "." in name}))
    named = re.findall(rf"`((?:{groups})\.[a-z_]+)\b[^/`]*`", document.read_text("utf-8"))
    assert [name for name in named if name not in settings() and not name.endswith((".py", ".md"))] == []


def test_every_metric_is_listed_once_and_nothing_else_is() -> None:
    metrics, _ = told()
    listed = "\n".join(names for names, _ in table_of("docs/observability.md", "Metrics"))
    named = re.findall(r"`(\w+)`( †)?", listed)
    assert difference([name for name, _ in named], metrics) == NO_DIFFERENCE
    by_reason = {name for name, ways in metrics.items() if "count_by" in ways}
    assert difference([name for name, dagger in named if dagger], by_reason) == NO_DIFFERENCE


def test_every_log_line_is_listed_once_with_its_level_and_nothing_else_is() -> None:
    _, lines = told()
    listed = re.findall(r"^\| `([^`]+)` \| ([A-Z, ]+) \|", section("docs/observability.md", "Log lines"), re.MULTILINE)
    assert difference([line for line, _ in listed], lines) == NO_DIFFERENCE
    assert {line: set(levels.split(", ")) for line, levels in listed} == lines
    assert {*OF_CONVERSATION, *OF_SHARD} <= lines.keys(), "`bufferctl why` looks for a line that no function logs"


def test_the_table_of_rules_has_every_rule_with_its_default_and_its_bounds() -> None:
    cells = table_of("docs/rules.md", "Fields")
    documented = {}
    for names, defaults, bounds, _ in cells:
        for name, default in zip(re.findall(r"`(\w+)`", names), defaults.replace("`", "").split(", "), strict=False):
            documented[name] = (default, bounds.replace("above ", ""))
    preset = documented.pop("preset")
    assert preset[0] == "none"
    assert documented.keys() == {name for name in RULE_FIELDS.values() if name != "flushWords"}
    for python_name, name in RULE_FIELDS.items():
        field, (default, bounds) = Rules.model_fields[python_name], documented[name.replace("flush", "stop", 1)]
        limits = [
            str(getattr(each, end)) for end in ("ge", "gt", "le") for each in field.metadata if hasattr(each, end)
        ]
        assert default == {"False": "false", "()": "none", "None": "none"}.get(
            str(field.default), str(field.default)
        ), name
        if limits:
            assert [float(each) for each in bounds.split(" … ")] == [float(each) for each in limits], name


def test_the_runbook_quotes_only_what_functions_say() -> None:
    """Log lines, and the reasons that failed calls name."""
    quoted = re.findall(r'"([a-z][\w ]+)"', section("docs/runbook.md", "Symptoms"))
    said = {
        node.value
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert quoted
    assert [quote for quote in quoted if not any(quote in each for each in said)] == []


def test_a_document_that_lies_is_found_out() -> None:
    readme = ROOT / "README.md"
    text = "[a](docs/nowhere.md) [b](docs/design.md#nowhere) [c](#two-commands) `test_not_written` `test_every_link…`"
    assert broken_links(readme, text) == ["docs/nowhere.md", "docs/design.md#nowhere"]
    assert missing_tests(text, names_of_tests()) == ["test_not_written"]
    assert difference(["a", "b", "b"], ["a", "c"]) == {"lacks": ["c"], "in vain": ["b"], "twice": ["b"]}
    assert "cache.max_storage_gb" in settings()
    assert FILE.findall("`docs/nowhere.md`") == ["docs/nowhere.md"]
