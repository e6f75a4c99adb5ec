"""The ids by which a platform names an author."""

from typing import NamedTuple


class AuthorIds(NamedTuple):
    """A phone number, and the id that names the author in all chats with one business. One of them may be unknown.

    WhatsApp sends both, or only the id if the author hides the number. The id is case-sensitive.
    """

    number: str | None
    user_id: str | None
