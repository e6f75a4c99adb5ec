"""The errors of the local stage that a developer can act on."""


class LocalError(RuntimeError):
    """The local stage cannot carry out a command; the message is a sentence that says why and what to do."""
