"""The dependency layer: wheels unpacked by pip, for the host or for Lambda, without Docker.

A layer is named after all that decides its content, so a second build of the same one is a look at a folder.
"""

import compileall
import hashlib
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
from enum import Enum
from pathlib import Path

LAMBDA_PYTHON = "3.13"
# What the wheels of the Lambda runtime (Amazon Linux 2023, glibc 2.34, arm64) may be tagged with.
LAMBDA_PLATFORMS = ("manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_28_aarch64")
UNUSED_FOLDERS = ("__pycache__", "tests", "test", "bin")
UNUSED_SUFFIXES = (".pyi", ".c", ".h")
# importlib.metadata answers version() from METADATA alone.
KEPT_OF_DIST_INFO = ("METADATA",)
RECIPE = "1"


class LayerError(RuntimeError):
    """pip could not put the layer together."""


class Platform(Enum):
    HOST = "host"
    LAMBDA = "lambda-arm64"


def build_layer(requirements: Path, *, platform: Platform, cache: Path) -> Path:
    """The folder to publish as a layer; built only if this content was not built before."""
    target = cache / f"{platform.value}-{_content_key(requirements, platform)}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="building-") as scratch:
        built = Path(scratch) / "layer"
        _install(requirements, into=built / "python", platform=platform)
        _strip(built / "python")
        if platform is Platform.HOST:
            _compile(built / "python")
        try:
            os.rename(built, target)
        except OSError:
            # Another build of the same content came first.
            if not target.is_dir():
                raise
    return target


def _content_key(requirements: Path, platform: Platform) -> str:
    interpreter = LAMBDA_PYTHON if platform is Platform.LAMBDA else sys.implementation.cache_tag
    digest = hashlib.sha256(f"{RECIPE} {platform.value} {interpreter} {sys.platform}\n".encode())
    digest.update(requirements.read_bytes())
    return digest.hexdigest()[:16]


def _install(requirements: Path, *, into: Path, platform: Platform) -> None:
    # The requirements are a lock: whatever a package needs stands in it.
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-compile",
        "--only-binary=:all:",
    ]
    command += ["--disable-pip-version-check", "--requirement", str(requirements), "--target", str(into)]
    if platform is Platform.LAMBDA:
        command += ["--implementation", "cp", "--python-version", LAMBDA_PYTHON]
        command += [argument for tag in LAMBDA_PLATFORMS for argument in ("--platform", tag)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    if result.returncode:
        raise LayerError(f"pip could not build the {platform.value} layer from {requirements}:\n{result.stderr}")


def _strip(packages: Path) -> None:
    for folder, subfolders, files in os.walk(packages):
        for name in [name for name in subfolders if name in UNUSED_FOLDERS]:
            shutil.rmtree(Path(folder, name))
            subfolders.remove(name)
        in_dist_info = ".dist-info" in folder
        for name in files:
            unwanted = name not in KEPT_OF_DIST_INFO if in_dist_info else name.endswith(UNUSED_SUFFIXES)
            if unwanted:
                Path(folder, name).unlink()
        if in_dist_info:
            for name in list(subfolders):
                shutil.rmtree(Path(folder, name))
                subfolders.remove(name)


def _compile(packages: Path) -> None:
    # The emulator unpacks the layer for every worker, with new file times: unchecked byte code survives that.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(packages, quiet=2, invalidation_mode=mode)
