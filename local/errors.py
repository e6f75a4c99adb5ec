"""What can go wrong with the local stage and is told in a sentence."""


class LocalError(RuntimeError):
    """The local stage cannot do what it was asked; the message says why and what to do."""
