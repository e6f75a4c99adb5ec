"""The errors of the local stage that a developer can act on."""


class LocalError(RuntimeError):
    """Raised if the local stage cannot carry out a command. The exception's text says why, and what to do."""
