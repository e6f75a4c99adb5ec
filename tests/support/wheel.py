"""Writes a package that pip can install."""

from pathlib import Path
from zipfile import ZipFile


def write_wheel(folder: Path) -> Path:
    """Write the wheel of `thing` 1.0, a package without code, into a new folder. Return its path."""
    folder.mkdir()
    wheel = folder / "thing-1.0-py3-none-any.whl"
    with ZipFile(wheel, "w") as files:
        files.writestr("thing.py", "")
        files.writestr("thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
        files.writestr("thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        files.writestr("thing-1.0.dist-info/RECORD", "")
    return wheel
