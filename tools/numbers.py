"""Writes docs/numbers.md, which lists the numeric constants of the code: `.venv/bin/python -m tools.numbers`."""

import ast
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from infra.settings_and_defaults import StageConfig
from message_buffer.rules.rules_and_defaults import RULE_FIELDS, Rules

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "numbers.md"
ROOMS = ("message_buffer", "lambdas", "infra", "bufferctl")
OF_AWS = (
    "BATCH_READS BATCH_WRITES DEAD_LETTER_RETENTION_DAYS DELETES MAX_CACHE_CONNECTIONS MAX_ENTRIES_IN_A_CALL"
    " MAX_ENTRY_BYTES_IN_A_CALL MAX_TRIGGER_DELAY_MS MAX_VARIABLES_BYTES PAGE READ_BYTES RULE_SECONDS WRITE_BYTES"
)
# If more modules than this use a number, the page shows only how many they are.
MAX_NAMED_USERS = 3
SECONDS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
UNITS = {
    "MS": (*((1_000 * size, unit) for size, unit in SECONDS), (1, "ms")),
    "SECONDS": SECONDS,
    "BYTES": ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes")),
    **{word: ((1, word.lower()),) for word in ("CHARACTERS", "DAYS", "DIGITS", "HOURS", "MINUTES", "PERCENT")},
}
HEAD = """# Numbers

`.venv/bin/python -m tools.numbers` writes this page. The prices of AWS are in
[prices.toml](../bufferctl/cost/prices.toml).

## Operators, by a setting

In `infra/settings_and_defaults.py`. Settings without a number as default are left out.
"""


class Module:
    def __init__(self, path: Path) -> None:
        self.path = path.relative_to(ROOT)
        self.name = ".".join(self.path.with_suffix("").parts)
        self.tree = ast.parse(path.read_text("utf-8"))
        self.imports: dict[str, tuple[str, str]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                source = ".".join((*self.path.parts[: -node.level], node.module or "")) if node.level else node.module
                self.imports |= {alias.asname or alias.name: (source or "", alias.name) for alias in node.names}
        self.values: dict[str, float] = {}

    def uses(self) -> Iterator[tuple[str, str]]:
        """Yield the (module, name) of each import in this file, and of each attribute of an import that is used."""
        yield from self.imports.values()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self.imports:
                yield ".".join(self.imports[node.value.id]), node.attr

    def evaluate(self, modules: dict[str, "Module"]) -> bool:
        """Set the numeric constants' values. Return True if any was new, because more may now be computable."""
        found: dict[str, Any] = {}
        for local, (source, name) in self.imports.items():
            if source in modules and name in modules[source].values:
                found[local] = modules[source].values[name]
        for node in self.tree.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                with suppress(NameError, AttributeError, TypeError, KeyError):  # anything but arithmetic
                    exec(compile(ast.Module([node], []), "", "exec"), {"__builtins__": {"int": int}}, found)  # noqa: S102
        before, public = len(self.values), {name for name in found if name.isupper() and name[0] != "_"}
        self.values = {
            name: found[name] for name in found if name in public - {*self.imports} and _is_number(found[name])
        }
        return len(self.values) > before


def page() -> str:
    """Return the text of docs/numbers.md."""
    paths = sorted(path for room in (*ROOMS, "tools") for path in (ROOT / room).rglob("*.py"))
    modules = {module.name: module for module in map(Module, paths)}
    while sum(module.evaluate(modules) for module in modules.values()):
        pass
    uses = {(use, f"`{module.path}`") for module in modules.values() for use in module.uses()}
    rules = ((RULE_FIELDS[name], name, field.default) for name, field in Rules.model_fields.items())
    lines = [HEAD, "| setting | default |", "|---|---|", *_rows(_settings(StageConfig))]
    lines += [
        "",
        "## Operators, by a rule",
        "",
        "In `message_buffer/rules/rules_and_defaults.py`; [all rules](rules.md).",
        "",
    ]
    lines += ["| rule | default |", "|---|---|", *_rows(rules), "", "## Developers, unless AWS decides", ""]
    lines += ["| constant | value | file | who changes it | also used by |", "|---|---|---|---|---|"]
    for module in modules.values():
        for name, value in module.values.items() if module.path.parts[0] in ROOMS else ():
            users = sorted(user for use, user in uses if use == (module.name, name))
            named = ", ".join(users) if len(users) <= MAX_NAMED_USERS else f"{len(users)} modules"
            who = "AWS" if name in OF_AWS.split() else "developers"
            lines.append(f"| `{name}` | {_shown(name, value)} | `{module.path}` | {who} | {named} |")
    return "\n".join([*lines, ""])


def _settings(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    for name, field in model.model_fields.items():
        inner = [each for each in (field.annotation, *get_args(field.annotation)) if isinstance(each, type)]
        if groups := [each for each in inner if issubclass(each, BaseModel)]:
            yield from _settings(groups[0], f"{prefix}{name}.")
        else:
            yield prefix + name, name, field.default


def _rows(fields: Iterable[tuple[str, str, Any]]) -> Iterator[str]:
    return (f"| `{shown}` | {_shown(name, value)} |" for shown, name, value in fields if _is_number(value))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(name: str, value: float) -> str:
    """Return text in the largest unit that keeps the value whole. The first unit word in `name` is `value`'s unit."""
    units = next((UNITS[word] for word in name.upper().split("_") if word in UNITS), ((1, ""),))
    size, unit = next(((size, unit) for size, unit in units if value and value % size == 0), units[-1])
    return f"{value / size:,.15g} {unit}".strip()


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
