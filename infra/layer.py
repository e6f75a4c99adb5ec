"""The dependency layer: wheels unpacked by pip, for the host or for Lambda, without Docker.

A layer is named after all that decides its content, so a second build of the same one is a look at a folder.
It carries byte code: Lambda mounts layers read-only, so each cold start would compile every module anew.
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
# What the wheels of the Lambda runtime (Amazon Linux 2023, glibc 2.34, arm64) may be tagged with.
LAMBDA_PLATFORMS = ("manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_28_aarch64")
UNUSED_FOLDERS = ("__pycache__", "tests", "test", "bin")
UNUSED_SUFFIXES = (".pyi", ".c", ".h")
# importlib.metadata answers version() from METADATA alone.
KEPT_OF_DIST_INFO = ("METADATA",)
RECIPE = "2"


class LayerError(RuntimeError):
    """The layer could not be put together."""


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
        if interpreter := _interpreter(platform):
            _compile(built, interpreter=interpreter)
        try:
            os.rename(built, target)
        except OSError:
            # Another build of the same content came first.
            if not target.is_dir():
                raise
    return target


def link_to(layer: Path) -> Path:
    """For functions on this machine. The emulator unpacks a layer for each process: this one says where to look."""
    linked = layer.with_name(f"{layer.name}-linked")
    packages = linked / "python" / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True, exist_ok=True)
    # What a layer brings comes before what the interpreter has of its own, as on Lambda.
    (packages / "layer.pth").write_text(f"import sys; sys.path.insert(0, {str(layer / 'python')!r})\n")
    return linked


@cache
def lambda_interpreter() -> str | None:
    """A Python that writes the byte code Lambda reads: this one, or `python3.13` on the PATH. None: there is none."""
    wanted = f"python{LAMBDA_PYTHON}"
    if wanted == f"python{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    found = shutil.which(wanted)
    # A version manager may have put a script there that only tells how to switch versions.
    if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:  # noqa: S603
        return found
    return None


def _interpreter(platform: Platform) -> str | None:
    return sys.executable if platform is Platform.HOST else lambda_interpreter()


def _content_key(requirements: Path, platform: Platform) -> str:
    target = LAMBDA_PYTHON if platform is Platform.LAMBDA else f"{sys.implementation.cache_tag} {sys.platform}"
    compiled = _interpreter(platform) is not None
    digest = hashlib.sha256(f"{RECIPE} {platform.value} {target} {compiled=}\n".encode())
    digest.update(requirements.read_bytes())
    return digest.hexdigest()[:16]


def _install(requirements: Path, *, into: Path, platform: Platform) -> None:
    # The requirements are a lock: whatever a package needs stands in it.
    options = ["--quiet", "--no-deps", "--no-compile", "--only-binary=:all:", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(into)]
    if platform is Platform.LAMBDA:
        command += ["--implementation", "cp", "--python-version", LAMBDA_PYTHON]
        command += [argument for tag in LAMBDA_PLATFORMS for argument in ("--platform", tag)]
        command += lambda_pins(requirements)
    else:
        command += ["--requirement", str(requirements)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    if result.returncode:
        raise LayerError(f"pip could not build the {platform.value} layer from {requirements}:\n{result.stderr}")


def lambda_pins(requirements: Path) -> Iterator[str]:
    """The pins that hold on Lambda; pip would ask their markers of the interpreter that it runs on."""
    for line in requirements.read_text("utf-8").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            pin = Requirement(line)
            if pin.marker is None or pin.marker.evaluate(LAMBDA_MARKERS):
                yield f"{pin.name}{pin.specifier}"


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


def _compile(layer: Path, *, interpreter: str) -> None:
    # Unpacking gives the files new times: unchecked byte code survives that. -I: nothing in this environment
    # moves the byte code elsewhere. -s and -p: the folder of this build must not get into it.
    command = [interpreter, "-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    command += ["-s", str(layer), "-p", "/opt", str(layer / "python")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    if result.returncode:
        raise LayerError(f"{interpreter} could not compile the layer:\n{result.stdout}{result.stderr}")
