"""Opens pages in a real Chromium: one that is installed on this machine, or one that `npm` installs."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Playwright, sync_playwright

from infra.cli import CACHES, node, npm

PACKAGES = Path(__file__).parents[1] / "browser"
INSTALLED = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# The package's files are compressed for Lambda. Node can decompress them.
UNPACK = """
const fs = require("fs"), zlib = require("zlib"), path = require("path");
const [from, to] = process.argv.slice(1);
for (const name of fs.readdirSync(from).filter((each) => each.endsWith(".br")))
  fs.writeFileSync(path.join(to, name.slice(0, -3)), zlib.brotliDecompressSync(fs.readFileSync(path.join(from, name))));
"""
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}/fonts</dir><cachedir>{folder}/cache</cachedir></fontconfig>
"""
ARGUMENTS = ["--no-sandbox", "--no-zygote", "--disable-gpu", "--use-gl=angle", "--use-angle=swiftshader"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield a browser. Without one, skip the test on a laptop, and fail it in CI."""
    with sync_playwright() as playwright:
        try:
            browser = _launched(playwright)
        except (OSError, subprocess.CalledProcessError) as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"there is no Chromium here, and npm could not bring one: {error}")
        try:
            yield browser
        finally:
            browser.close()


def axe() -> str:
    """Return the script of axe-core, which finds faults of accessibility."""
    return (_packages() / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")


def _launched(playwright: Playwright) -> Browser:
    found = next(filter(None, map(shutil.which, INSTALLED)), None)
    environment: dict[str, str | float | bool] = {**os.environ, "LANG": "en_US.UTF-8"}
    if found is None:
        folder = _packages() / "unpacked"
        found = str(folder / "chromium")
        environment |= {"LD_LIBRARY_PATH": str(folder / "lib"), "FONTCONFIG_FILE": str(folder / "fonts.conf")}
    return playwright.chromium.launch(executable_path=found, args=ARGUMENTS, env=environment)


def _packages() -> Path:
    """Return the folder with the packages, and install them first if needed."""
    lock = (PACKAGES / "package-lock.json").read_bytes()
    folder = CACHES / "browser" / hashlib.sha256(lock).hexdigest()[:12]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.with_suffix(".part")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            _install(unfinished)
            unfinished.rename(folder)
            (folder / "unpacked" / "fonts.conf").write_text(FONTS.format(folder=folder / "unpacked"))
    return folder


def _install(folder: Path) -> None:
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(PACKAGES / name, folder)
    _run([*npm(), "ci", "--ignore-scripts"], folder)
    unpacked = folder / "unpacked"
    unpacked.mkdir()
    _run([str(node()), "-e", UNPACK, str(folder / "node_modules/@sparticuz/chromium/bin"), str(unpacked)], folder)
    (unpacked / "chromium").chmod(0o755)
    for archive in unpacked.glob("*.tar"):
        shutil.unpack_archive(archive, unpacked, filter="data")
        archive.unlink()


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
