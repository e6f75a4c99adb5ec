"""Replaces this process with the console, a separate program, so that other commands do not need its packages."""

import os
import sys
from argparse import Namespace

from bufferctl.stage import ROOT


def find_nothing(*_given: object, **_options: object) -> None:
    """Return None, because the console finds the stage itself."""


def open_console(_nothing: None, given: Namespace) -> None:
    options = {"--stage": given.stage, "--profile": given.profile, "--region": given.region, "--outputs": given.outputs}
    flags = {"--allow-changes": given.allow_changes, "--show-words": given.show_words}
    words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    words += [name for name, is_set in flags.items() if is_set]
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "-m", "tools.console", *words])
