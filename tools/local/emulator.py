"""Installs the AWS emulator in a Python environment of its own, and starts it."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

import urllib3

from tools.local import processes
from tools.local.errors import LocalError
from tools.local.processes import PROCESS_POLL_SECONDS

MAX_EMULATOR_START_SECONDS = 30.0
# A server that takes longer than this to respond counts as down.
MAX_EMULATOR_HEALTH_SECONDS = 2.0
REQUIREMENTS = Path(__file__).parent / "requirements.txt"
INHERITED = ("HOME", "LANG", "PATH", "TZ")
ACCOUNT = "000000000000"


def ensure_installed(folder: Path, requirements: Path = REQUIREMENTS) -> Path:
    """Build the environment in `folder` again if its requirements or Python changed. Return its interpreter."""
    python = folder / "bin" / "python"
    stamp = folder / "installed"
    wanted = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=False)
    # Use the pip of this process's environment, because `venv` takes ten times as long if it also installs pip there.
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
    command += ["--disable-pip-version-check", "--require-hashes", "--requirement", str(requirements)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise LocalError(f"{requirements} could not be installed:\n{result.stderr}")
    stamp.write_text(wanted)
    return python


def start(*, python: Path, port: int, region: str, folder: Path, instance: str) -> None:
    """Start the emulator and wait until it responds. The emulator writes only below `folder`."""
    scratch = folder / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    # The functions inherit this environment, so leave out the developer's settings, which functions on Lambda would not
    # have.
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ} | {
        "GATEWAY_PORT": str(port),
        "BIND_HOST": "127.0.0.1",
        "MINISTACK_HOST": "127.0.0.1",
        "MINISTACK_REGION": region,
        "MINISTACK_ACCOUNT_ID": ACCOUNT,
        # With this variable the emulator enforces IAM: it checks signatures and policies, as AWS does.
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
    deadline = time.monotonic() + MAX_EMULATOR_START_SECONDS
    while not is_alive(port):
        if time.monotonic() > deadline:
            raise LocalError(f"The emulator did not start on port {port}: see {folder.parent / 'emulator.log'}.")
        time.sleep(PROCESS_POLL_SECONDS)


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def is_alive(port: int) -> bool:
    health = f"{url(port)}/_ministack/health"
    try:
        return urllib3.request("GET", health, timeout=MAX_EMULATOR_HEALTH_SECONDS, retries=False).status == 200
    except urllib3.exceptions.HTTPError:
        return False
