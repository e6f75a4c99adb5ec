"""Telegram's rich messages: blocks (paragraphs, lists, tables, files, …) instead of a text."""

from typing import Any

from lambdas.ingest.platforms.base import list_of, object_of, word_of
from message_buffer.json_object import Json

# Telegram nests a rich message's blocks and texts in at most 16 levels. We count a list of texts as another level.
MAX_LEVELS_OF_A_RICH_MESSAGE = 32
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

    def __init__(self, given: Json) -> None:
        self._lines: list[str] = []
        self.links: list[dict[str, str]] = []
        self.files: list[dict[str, Any]] = []
        """The files, in the form of messages without blocks: `{"photo": …}`, `{"video": …}`."""
        self.labels: dict[str, str] = {}
        """Data of a button -> its label."""
        self._read_blocks(given.get("blocks"), MAX_LEVELS_OF_A_RICH_MESSAGE)

    @property
    def text(self) -> str:
        return "\n".join(self._lines)

    def _read_blocks(self, blocks: Any, levels: int) -> None:
        if not levels:
            return
        for block in map(object_of, list_of(blocks)):
            self._read_block(block, levels)

    def _read_block(self, block: Json, levels: int) -> None:
        kind = word_of(block.get("type")) or ""
        if kind in _FILES:
            self.files.append({_FILES[kind]: block.get(kind)})
        if kind == "map":
            self.files.append({"location": block.get("location")})
        for field in ("summary", "text"):
            self._add(self._words(block.get(field), levels))
        self._add(word_of(block.get("expression")) or "")
        for row in list_of(block.get("cells")):
            self._add(" | ".join(self._words(object_of(cell).get("text"), levels) for cell in list_of(row)))
        for item in map(object_of, list_of(block.get("items"))):
            self._read_item(item, levels)
        for button in map(object_of, list_of(block.get("buttons"))):
            self._add(self._button(button, levels))
        self._read_blocks(block.get("blocks"), levels - 1)
        # A table's caption is a text, and a file's caption is an object that has a text.
        self._add(self._words(block.get("caption"), levels))
        self._add(self._words(block.get("credit"), levels))

    def _read_item(self, item: Json, levels: int) -> None:
        begin = len(self._lines)
        self._read_blocks(item.get("blocks"), levels - 1)
        box = ("[x]" if item.get("is_checked") is True else "[ ]") if item.get("has_checkbox") is True else None
        sign = box or word_of(item.get("label"))
        if sign and len(self._lines) > begin:
            self._lines[begin] = f"{sign} {self._lines[begin]}"

    def _words(self, given: Any, levels: int) -> str:
        """Return the words of a text, which is a string, a list of texts, or an object that has a text."""
        if isinstance(given, str):
            return given
        if not levels:
            return ""
        if isinstance(given, list):
            return "".join(self._words(part, levels - 1) for part in given)
        part = object_of(given)
        if button := object_of(part.get("button")):
            return self._button(button, levels - 1)
        words = self._words(part.get("text"), levels - 1)
        if words and (url := word_of(part.get("url"))):
            self.links.append({"text": words, "url": url})
        return words or word_of(part.get("alternative_text")) or word_of(part.get("expression")) or ""

    def _button(self, button: Json, levels: int) -> str:
        label = self._words(button.get("text"), levels)
        if data := word_of(button.get("callback_data")):
            self.labels.setdefault(data, label)
        return label

    def _add(self, line: str) -> None:
        if line:
            self._lines.append(line)
