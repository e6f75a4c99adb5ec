"""Reads commands, and the output shown below them, from the fenced blocks of a Markdown document."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FENCED = re.compile(r"^```(?P<language>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
# A block in any other language, or in none, is a block for a shell.
NOT_FOR_A_SHELL = {"json", "mermaid", "python", "toml", "yaml"}
PROMPT = "$ "
# A block without prompts holds commands if its first line begins with one of these words, and otherwise output.
PROGRAM = re.compile(r"(\.venv/|make |bufferctl |aws |curl |cd |git |pip )")
# The values that differ between two runs of a command.
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}")
BATCH = re.compile(r"\b[0-9a-f]{24}-\d+-\d+\b")
NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class Command:
    """A command of a document, and the output that the document shows for it, which may be empty."""

    where: str
    text: str
    shown: str = ""


class Document:
    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._text = text
        self.commands: list[Command] = []
        # Blocks that hold no command: the output of one, or a list of usages.
        self.listings: list[str] = []
        for block in FENCED.finditer(text):
            if block["language"] not in NOT_FOR_A_SHELL:
                self._read(block["text"], first_line=text.count("\n", 0, block.start("text")) + 1)

    @classmethod
    def read(cls, path: Path) -> "Document":
        return cls(path.name, path.read_text("utf-8"))

    def of_json(self, key: str) -> Any:
        """Return the content of the one JSON block that is an object with this key."""
        blocks = [json.loads(block["text"]) for block in FENCED.finditer(self._text) if block["language"] == "json"]
        (found,) = [block for block in blocks if isinstance(block, dict) and key in block]
        return found

    def make_commands(self) -> list[str]:
        """Return the calls of make in the blocks and in the sentences between them."""
        sentences = FENCED.sub("", self._text)
        in_sentences = re.findall(r"`(make\s[^`]+)`", sentences)
        in_blocks = [command.text for command in self.commands if command.text.startswith("make ")]
        return [*in_blocks, *(" ".join(each.split()) for each in in_sentences)]

    def _read(self, block: str, *, first_line: int) -> None:
        lines = list(_joined(block, first_line))
        if any(text.startswith(PROMPT) for _, text in lines):
            self._read_session(lines)
        elif PROGRAM.match(block.lstrip()):
            self.commands += [Command(f"{self.name}:{number}", text) for number, text in lines if text]
        else:
            self.listings.append(block)

    def _read_session(self, lines: list[tuple[int, str]]) -> None:
        starts = [place for place, (_, text) in enumerate(lines) if text.startswith(PROMPT)]
        assert starts[0] == 0, f"{self.name}:{lines[0][0]}: output above the first command of a block"
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            number, text = lines[start]
            shown = "\n".join(line for _, line in lines[start + 1 : end])
            self.commands.append(Command(f"{self.name}:{number}", text.removeprefix(PROMPT), shown))


def _joined(block: str, first_line: int) -> Iterator[tuple[int, str]]:
    """Yield each line with its number; a line that ends with a backslash includes the next one."""
    waiting = ""
    began = first_line
    for number, line in enumerate(block.splitlines(), first_line):
        began = began if waiting else number
        waiting += line
        if waiting.endswith("\\"):
            waiting = f"{waiting[:-1]} "
            continue
        yield began, waiting
        waiting = ""


Shape = tuple[str, ...]


def shape(output: str) -> list[Shape]:
    """Return what two runs of one command have in common: sentences without values, a table's columns, a list's keys.

    Paragraphs are separated by empty lines, cells by two spaces or more.
    """
    return [_shape_of(paragraph.splitlines()) for paragraph in re.split(r"\n\s*\n", output.strip("\n")) if paragraph]


def _shape_of(lines: list[str]) -> Shape:
    rows = [re.split(r" {2,}", line.strip()) for line in lines]
    if len(rows[0]) > 2:
        return ("table", *rows[0])
    if len(rows[0]) == 2:
        return ("pairs", *(_without_values(row[0]) for row in rows))
    return ("text", *(_without_values(line) for line in lines))


def _without_values(text: str) -> str:
    return NUMBER.sub("<number>", BATCH.sub("<batch>", TIME.sub("<time>", text)))


def keys(value: Any, path: str = "") -> set[str]:
    """Return the path of every key in a JSON value; items of a list share one path."""
    if isinstance(value, dict):
        return {f"{path}.{name}" for name in value}.union(
            *(keys(each, f"{path}.{name}") for name, each in value.items())
        )
    if isinstance(value, list):
        return set().union(*(keys(each, f"{path}[]") for each in value))
    return set()
