"""Reads commands from the fenced blocks of a Markdown document."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FENCED = re.compile(r"^```(?P<language>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
# A block in any other language, or in none, is a block for a shell.
NOT_FOR_A_SHELL = {"json", "mermaid", "python", "toml", "yaml"}
PROMPT = "$ "
# A block without prompts holds commands if its first line begins with one of these words, and otherwise output.
PROGRAM = re.compile(r"(\.venv/|make |bufferctl |aws |curl |cd |git |pip )")


@dataclass(frozen=True)
class Command:
    where: str
    text: str


class Document:
    def __init__(self, name: str, text: str) -> None:
        self._text = text
        self.commands: list[Command] = []
        for block in FENCED.finditer(text):
            if block["language"] in NOT_FOR_A_SHELL:
                continue
            first_line = text.count("\n", 0, block.start("text")) + 1
            # A line that ends with a backslash goes on in the next one; the empty line keeps the numbers.
            lines = re.sub(r"((?:.*\\\n)+)(.*\n)", _joined, block["text"]).splitlines()
            has_prompts = any(line.startswith(PROMPT) for line in lines)
            if has_prompts or PROGRAM.match(block["text"].lstrip()):
                self.commands += [
                    Command(f"{name}:{number}", line.removeprefix(PROMPT))
                    for number, line in enumerate(lines, first_line)
                    if (line.startswith(PROMPT) if has_prompts else line)
                ]

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


def _joined(found: re.Match[str]) -> str:
    return found[0].replace("\\\n", " ") + "\n" * found[1].count("\\\n")


def keys(value: Any, path: str = "") -> set[str]:
    """Return the path of every key in a JSON value; items of a list share one path."""
    if isinstance(value, dict):
        return {f"{path}.{name}" for name in value}.union(
            *(keys(each, f"{path}.{name}") for name, each in value.items())
        )
    if isinstance(value, list):
        return set().union(*(keys(each, f"{path}[]") for each in value))
    return set()
