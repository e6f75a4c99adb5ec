"""The AWS emulator, in an environment of its own."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

import urllib3

from local import processes
from local.errors import LocalError

REQUIREMENTS = Path(__file__).parent / "requirements.txt"
INHERITED = ("HOME", "LANG", "PATH", "TZ")
ACCOUNT = "000000000000"
START_SECONDS = 30.0
POLL_SECONDS = 0.05


def ensure_installed(folder: Path) -> Path:
    """The interpreter of the emulator's environment, made anew when requirements or Python change."""
    python = folder / "bin" / "python"
    stamp = folder / "installed"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=False)
    # The host's pip installs into it: an environment without pip is made in a tenth of the time.
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--only-binary=:all:",
    ]
    command += ["--disable-pip-version-check", "--requirement", str(REQUIREMENTS)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise LocalError(f"The emulator could not be installed:\n{result.stderr}")
    stamp.write_text(wanted)
    return python


def start(*, python: Path, port: int, region: str, folder: Path, instance: str) -> None:
    """Start the emulator; everything it writes goes below `folder`."""
    scratch = folder / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    # What the functions see is what Lambda gives them, not the settings of whoever started this.
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ} | {
        "GATEWAY_PORT": str(port),
        "BIND_HOST": "127.0.0.1",
        "MINISTACK_HOST": "127.0.0.1",
        "MINISTACK_REGION": region,
        "MINISTACK_ACCOUNT_ID": ACCOUNT,
        # Calls are signed, and a function may do what its role allows, as in AWS.
        "AUTH": "true",
        "TMPDIR": str(scratch),
        "S3_DATA_DIR": str(folder / "s3"),
        "STATE_DIR": str(folder / "state"),
        "PYTHONUNBUFFERED": "1",
        "AWS_ENDPOINT_URL": url(port),
    }
    processes.start(
        [str(python), "-m", "ministack"],
        instance=instance,
        log=folder.parent / "emulator.log",
        environment=environment,
    )
    deadline = time.monotonic() + START_SECONDS
    while not is_alive(port):
        if time.monotonic() > deadline:
            raise LocalError(f"The emulator did not become ready on port {port}; see {folder.parent / 'emulator.log'}.")
        time.sleep(POLL_SECONDS)


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def is_alive(port: int) -> bool:
    try:
        return urllib3.request("GET", f"{url(port)}/_ministack/health", timeout=2, retries=False).status == 200
    except urllib3.exceptions.HTTPError:
        return False
