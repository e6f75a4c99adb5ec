"""Divides a reply into the parts that a channel accepts."""

# Separators at which a text may be split, from the best to the worst.
BREAKS = ("\n\n", "\n", ". ", " ")


def split(text: str, max_characters: int) -> list[str]:
    """Return the text in parts of at most `max_characters`, divided between paragraphs, lines, sentences or words."""
    parts: list[str] = []
    # An AI may return half of a surrogate pair, which can neither be stored nor sent.
    rest = text.encode("utf-8", "replace").decode().strip()
    while len(rest) > max_characters:
        # Do not divide in the first half, or there would be too many parts.
        places = (rest.rfind(each, max_characters // 2, max_characters) for each in BREAKS)
        at = next((place for place in places if place != -1), None)
        cut = max_characters if at is None else at + 1
        parts.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    return [*parts, rest]
