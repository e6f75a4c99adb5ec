"""Telegram's rich messages: blocks (paragraphs, lists, tables, files, …) instead of a text."""

from typing import Any

from lambdas.ingest.platforms.base import Fields, object_of

# Telegram nests a rich message's blocks and texts in at most 16 levels. We count a list of texts as another level.
MAX_LEVELS_OF_A_RICH_MESSAGE = 32
# Leave out further blocks and texts, because a body of the maximum size would take longer than ingest may run.
MAX_PARTS_OF_A_RICH_MESSAGE = 4_096
# The types of blocks that have a file. For each, the field that has such a file in an ordinary message.
_FILES = {
    "photo": "photo",
    "video": "video",
    "animation": "animation",
    "audio": "audio",
    "document": "document",
    "voice_note": "voice",
}


class RichMessage:
    """The text of a rich message, with a line for each block, and its links, files and buttons, in their order."""

    def __init__(self, given: Fields) -> None:
        self._lines: list[str] = []
        self._parts_left = MAX_PARTS_OF_A_RICH_MESSAGE
        self.links: list[dict[str, str]] = []
        self.files: list[Fields] = []
        """The files, in the form of messages without blocks: `{"photo": …}`, `{"video": …}`."""
        self.labels: dict[str, str] = {}
        """Data of a button -> its label."""
        self._read_blocks(given, MAX_LEVELS_OF_A_RICH_MESSAGE)

    @property
    def text(self) -> str:
        return "\n".join(self._lines)

    def _read_blocks(self, given: Fields, levels: int) -> None:
        for block in given.parts("blocks"):
            if not levels or self._parts_left <= 0:
                return
            self._parts_left -= 1
            self._read_block(block, levels)

    def _read_block(self, block: Fields, levels: int) -> None:
        kind = block.word("type") or ""
        if kind in _FILES:
            self.files.append(Fields({_FILES[kind]: block.get(kind)}))
        if kind == "map":
            self.files.append(Fields(location=block.get("location")))
        for field in ("summary", "text"):
            self._add(self._words(block.get(field), levels))
        self._add(block.word("expression") or "")
        for row in block.values_of("cells"):
            cells = map(object_of, row if isinstance(row, list) else [])
            self._add(" | ".join(self._words(cell.get("text"), levels) for cell in cells))
        for item in block.parts("items"):
            self._read_item(item, levels)
        for button in block.parts("buttons"):
            self._add(self._button(button, levels))
        self._read_blocks(block, levels - 1)
        # A table's caption is a text, and a file's caption is an object that has a text.
        self._add(self._words(block.get("caption"), levels))
        self._add(self._words(block.get("credit"), levels))

    def _read_item(self, item: Fields, levels: int) -> None:
        begin = len(self._lines)
        self._read_blocks(item, levels - 1)
        box = ("[x]" if item.get("is_checked") is True else "[ ]") if item.get("has_checkbox") is True else None
        sign = box or item.word("label")
        if sign and len(self._lines) > begin:
            self._lines[begin] = f"{sign} {self._lines[begin]}"

    def _words(self, given: Any, levels: int) -> str:
        """Return the words of a text, which is a string, a list of texts, or an object that has a text."""
        if isinstance(given, str):
            return given
        if given is None or not levels or self._parts_left <= 0:
            return ""
        self._parts_left -= 1
        if isinstance(given, list):
            return "".join(self._words(part, levels - 1) for part in given)
        part = object_of(given)
        if button := part.part("button"):
            return self._button(button, levels - 1)
        words = self._words(part.get("text"), levels - 1)
        if words and (url := part.word("url")):
            self.links.append({"text": words, "url": url})
        return words or part.word("alternative_text") or part.word("expression") or ""

    def _button(self, button: Fields, levels: int) -> str:
        label = self._words(button.get("text"), levels)
        if data := button.word("callback_data"):
            self.labels.setdefault(data, label)
        return label

    def _add(self, line: str) -> None:
        if line:
            self._lines.append(line)
