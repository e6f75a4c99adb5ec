"""Build the layer with the dependencies: pip unpacks wheels for this machine or for Lambda, without Docker.

The name of a layer's folder is derived from everything that decides its content, so an unchanged layer is not built
again. A layer contains byte code. Without it, every cold start would compile all modules, because Lambda mounts layers
read-only.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement

LAMBDA_PYTHON = "3.13"
LAMBDA_MARKERS = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "aarch64",
    "platform_system": "Linux",
    "python_full_version": f"{LAMBDA_PYTHON}.0",
    "python_version": LAMBDA_PYTHON,
    "sys_platform": "linux",
}
# The platform tags of wheels that run in the Lambda runtime (Amazon Linux 2023, glibc 2.34, arm64).
LAMBDA_PLATFORMS = ("manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_28_aarch64")
UNUSED_FOLDERS = ("__pycache__", "tests", "test", "bin")
UNUSED_SUFFIXES = (".pyi", ".c", ".h")
# `_strip` keeps this file of a package's metadata, because importlib.metadata.version() reads it.
KEPT_OF_DIST_INFO = ("METADATA",)
RECIPE = "2"


class LayerError(RuntimeError):
    """Raised if the layer cannot be built. The exception's text says why."""


class LayerPlatform(Enum):
    HOST = "host"
    LAMBDA = "lambda-arm64"


def build_layer(requirements: Path, *, platform: LayerPlatform, cache: Path) -> Path:
    """Return the folder to publish as a layer. It is built only if `cache` does not have this content yet."""
    target = cache / f"{platform.value}-{_content_key(requirements, platform)}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="building-") as scratch:
        built = Path(scratch) / "layer"
        _install(requirements, into=built / "python", platform=platform)
        _strip(built / "python")
        if interpreter := _interpreter(platform):
            _compile(built, interpreter=interpreter)
        try:
            os.rename(built, target)
        except OSError:
            # If the folder exists, another process has built the same content in the meantime.
            if not target.is_dir():
                raise
    return target


def link_to(layer: Path) -> Path:
    """Return a tiny layer that refers to `layer`, for the emulator, which unpacks a layer for each process."""
    linked = layer.with_name(f"{layer.name}-linked")
    packages = linked / "python" / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True, exist_ok=True)
    # As on Lambda, packages of the layer take precedence over those of the interpreter.
    (packages / "layer.pth").write_text(f"import sys; sys.path.insert(0, {str(layer / 'python')!r})\n")
    return linked


@cache
def lambda_interpreter() -> str | None:
    """Return a Python that writes byte code for Lambda: this one, or `python3.13` on the PATH, or None."""
    wanted = f"python{LAMBDA_PYTHON}"
    if wanted == f"python{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    found = shutil.which(wanted)
    # Try the Python that was found, because it may be a version manager's script that only prints how to switch
    # versions.
    if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:  # noqa: S603
        return found
    return None


def _interpreter(platform: LayerPlatform) -> str | None:
    return sys.executable if platform is LayerPlatform.HOST else lambda_interpreter()


def _content_key(requirements: Path, platform: LayerPlatform) -> str:
    target = LAMBDA_PYTHON if platform is LayerPlatform.LAMBDA else f"{sys.implementation.cache_tag} {sys.platform}"
    compiled = _interpreter(platform) is not None
    digest = hashlib.sha256(f"{RECIPE} {platform.value} {target} {compiled=}\n".encode())
    digest.update(requirements.read_bytes())
    return digest.hexdigest()[:16]


def _install(requirements: Path, *, into: Path, platform: LayerPlatform) -> None:
    # `--no-deps`, because the requirements are a lock file, which already contains all dependencies.
    options = ["--quiet", "--require-hashes", "--no-deps", "--no-compile", "--only-binary=:all:"]
    options += ["--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(into)]
    if platform is LayerPlatform.LAMBDA:
        command += ["--implementation", "cp", "--python-version", LAMBDA_PYTHON]
        command += [argument for tag in LAMBDA_PLATFORMS for argument in ("--platform", tag)]
        # pip reads hashes only from a file. The file must not become a part of the layer.
        pins = into.parents[1] / "pins.txt"
        pins.write_text("\n".join(lambda_pins(requirements)), "utf-8")
    else:
        pins = requirements
    command += ["--requirement", str(pins)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no part of it is input
    if result.returncode:
        raise LayerError(
            f"pip could not build {requirements} for {platform.value}. It must reach a package index.\n{result.stderr}"
        )


def lambda_pins(requirements: Path) -> Iterator[str]:
    """Yield the pins that apply on Lambda, with their hashes.

    pip would evaluate their markers for its own interpreter, not for Lambda's.
    """
    for line in requirements.read_text("utf-8").replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            words, *hashes = line.split("--hash=")
            pin = Requirement(words)
            if pin.marker is None or pin.marker.evaluate(LAMBDA_MARKERS):
                yield " ".join([f"{pin.name}{pin.specifier}", *(f"--hash={each.strip()}" for each in hashes)])


def _strip(packages: Path) -> None:
    for path in list(packages.rglob("*")):
        if path.parent.suffix == ".dist-info":
            unused = path.name not in KEPT_OF_DIST_INFO
        else:
            unused = path.suffix in UNUSED_SUFFIXES or (path.name in UNUSED_FOLDERS and path.is_dir())
        if unused and path.is_dir():
            shutil.rmtree(path)
        elif unused:
            path.unlink(missing_ok=True)


def _compile(layer: Path, *, interpreter: str) -> None:
    # "unchecked-hash" lets Python use the byte code without a comparison of the files' times, because Lambda changes
    # the times when it unpacks the layer. -I ignores environment variables, which could move the byte code elsewhere.
    # -s and -p replace the path of this build by the path on Lambda.
    command = [interpreter, "-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    command += ["-s", str(layer), "-p", "/opt", str(layer / "python")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no part of it is input
    if result.returncode:
        raise LayerError(f"{interpreter} could not compile the layer:\n{result.stdout}{result.stderr}")
