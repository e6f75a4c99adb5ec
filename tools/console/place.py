"""Finds the stage. It searches again after each start of the local stage, because a start changes the address."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bufferctl.errors import NoConnection, Unreachable, errors_of_aws
from bufferctl.facts import StageFacts
from bufferctl.stage import LOCAL, StageClient, find_account, find_stage
from tools.console.senders import GenericSender, LocalSender, Sender
from tools.local.errors import LocalError
from tools.local.outputs import Outputs

NOT_UP = "The local stage is not up. Start it with `make up`, and this page goes on."


@dataclass(frozen=True)
class Options:
    """The command line's options: the stage, and what the page may do."""

    stage: str = LOCAL
    profile: str | None = None
    region: str | None = None
    outputs: Path = Path(".local/outputs.json")
    allow_changes: bool = True
    show_words: bool = True

    @property
    def is_local(self) -> bool:
        return self.stage == LOCAL


class ShownStage:
    """The stage that the page shows."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._lock = threading.Lock()
        self._found: tuple[int, StageClient, Sender] | None = None

    @property
    def stage(self) -> StageClient:
        """Return the stage. Raise Failed if it does not exist, Unreachable if the local stage is not up."""
        return self._find()[1]

    @property
    def sender(self) -> Sender:
        return self._find()[2]

    @property
    def facts(self) -> StageFacts:
        """Return a reader of the stage's logs, which keeps nothing from one question to the next."""
        options = self.options
        account = find_account(options.stage, profile=options.profile, region=options.region, outputs=options.outputs)
        return StageFacts(options.stage, account.client, api_endpoint=account.api_endpoint, aws_cli=account.aws_cli)

    @property
    def listener(self) -> list[str]:
        """Return the command that prints the stage's events."""
        return [sys.executable, "-m", "tools.console.listener", json.dumps(asdict(self.options), default=str)]

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of calls in the `with` block into bufferctl's, whose texts are sentences for the page."""
        try:
            with errors_of_aws():
                yield
        except LocalError as error:
            raise Unreachable(NOT_UP) from error
        except NoConnection as error:
            if self.options.is_local:
                raise Unreachable(NOT_UP) from error
            raise

    def find(self) -> StageClient:
        """Return the stage as it is now. Raise Unreachable if the local stage is not up."""
        options = self.options
        if options.is_local and not options.outputs.exists():
            raise Unreachable(NOT_UP)
        return find_stage(options.stage, profile=options.profile, region=options.region, outputs=options.outputs)

    def _find(self) -> tuple[int, StageClient, Sender]:
        with self._lock:
            # Every start of the local stage writes this file again, because the ports change.
            written = _written_ns(self.options.outputs) if self.options.is_local else 0
            if self._found is None or self._found[0] != written:
                with self.errors():
                    stage, sender = self.find(), None
                    if self.options.is_local:
                        sender = LocalSender(Outputs.read(self.options.outputs))
                self._found = (written, stage, sender or GenericSender(stage))
            return self._found


def _written_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
