"""Obtains what is linked of stock ns-3 3.44: headers and a few shared libraries of its PyPI wheel.

pip downloads the wheel (its own configuration says from where) without dependencies, whatever Python runs this: the
C++ part does not depend on Python. The file has to have the pinned SHA-256. Only the headers of ns-3, the libraries
named below and the licence are unpacked, into a folder that later builds find again. Prints that folder.

    python third_party/ns-3/fetch.py [--into CACHE] [--wheel FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

REQUIREMENT: Final = "ns3==3.44.post0"
WHEEL: Final = "ns3-3.44.post0-cp312-cp312-manylinux_2_28_x86_64.whl"
WHEEL_SHA256: Final = "4d24fd23c9a2bfdb0ee158599c555e10ffdda37c09988c0b4efb577b3445c15b"
WHEEL_TAGS: Final = ("--python-version", "3.12", "--implementation", "cp", "--abi", "cp312")
WHEEL_PLATFORM: Final = "manylinux_2_28_x86_64"
MIN_GLIBC: Final = (2, 28)

LIBRARIES: Final = (
    "libns3.44-core.so",
    "libns3.44-network.so",
    "libns3.44-stats.so",  # network needs it
    "libgsl-b64c76bc.so.23.1.0",  # core and stats need it
    "libgslcblas-cd2c2030.so.0.0.0",
    "libsqlite3-9aacd65e.so.3.49.1",  # stats needs it
)
HEADERS: Final = "ns3/include/ns3/"
LICENCES: Final = "ns3-3.44.post0.dist-info/licenses/"
HOW_OFFLINE: Final = f"without a network give the file: --wheel (CMake: -DPD_NS3_WHEEL=) {WHEEL}"


class FetchError(Exception):
    """ns-3 cannot be had here; one line says why and what to do."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Obtains headers and libraries of stock ns-3 3.44.")
    parser.add_argument("--into", type=Path, default=default_cache(), help="where unpacked versions are kept")
    parser.add_argument("--wheel", type=Path, help="a wheel that has already been downloaded")
    arguments = parser.parse_args()
    try:
        print(obtain(arguments.into, arguments.wheel))
    except (FetchError, OSError) as error:
        print(f"ns-3: {error}", file=sys.stderr)
        return 1
    return 0


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vidur-pd"


def obtain(cache: Path, wheel: Path | None) -> Path:
    """The folder with ``include``, ``lib`` and ``licences``; filled first where this version is not there yet."""
    check_platform()
    content = hashlib.sha256(repr((WHEEL_SHA256, LIBRARIES, HEADERS)).encode()).hexdigest()
    folder = cache.resolve() / f"ns3-3.44-{content[:12]}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".ns3-", dir=cache) as scratch:
        checked = check_hash(wheel if wheel is not None else download(Path(scratch)))
        unpacked = Path(scratch) / "unpacked"
        unpack(checked, unpacked)
        move_whole(unpacked, folder)
    return folder


def check_platform() -> None:
    name, glibc = platform.libc_ver()
    found = f"{platform.system()} {platform.machine()} {name} {glibc}".strip()
    fits = platform.system() == "Linux" and platform.machine() == "x86_64" and name == "glibc"
    if not fits or tuple(int(part) for part in glibc.split(".")[:2]) < MIN_GLIBC:
        raise FetchError(f"found platform {found}, expected Linux x86_64 with glibc >= 2.28; build without PD_NS3")


def download(folder: Path) -> Path:
    options = ["--no-deps", "--only-binary=:all:", *WHEEL_TAGS, "--platform", WHEEL_PLATFORM, "--dest", str(folder)]
    last_words = "no interpreter with pip found"
    for pip in pips():
        command = [*pip, "download", "--quiet", "--disable-pip-version-check", *options, REQUIREMENT]
        ran = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if ran.returncode == 0 and (folder / WHEEL).is_file():
            return folder / WHEEL
        last_words = (ran.stderr.strip().splitlines() or ["pip gave another file"])[-1]
    raise FetchError(f"cannot download {REQUIREMENT} ({last_words}); {HOW_OFFLINE}")


def pips() -> Iterator[list[str]]:
    """Ways to run pip that exist here; isolated (-I), as a build environment hides the pip that created it."""
    interpreters = dict.fromkeys([sys.executable, os.path.realpath(sys.executable)])
    for python in interpreters:
        if subprocess.run([python, "-I", "-c", "import pip"], stderr=subprocess.DEVNULL).returncode == 0:
            yield [python, "-I", "-m", "pip"]
    if (pip := shutil.which("pip")) is not None:
        yield [pip]


def check_hash(wheel: Path) -> Path:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != WHEEL_SHA256:
        raise FetchError(f"{wheel.name}: found SHA-256 {found}, expected {WHEEL_SHA256} ({WHEEL})")
    return wheel


def unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            base = name.rpartition("/")[2]
            if name.startswith(HEADERS) and base:
                write(archive, name, folder / "include" / "ns3" / name.removeprefix(HEADERS))
            elif name.startswith(LICENCES) and base:
                write(archive, name, folder / "licences" / base)
        for library in LIBRARIES:
            write(archive, f"ns3/lib64/{library}", folder / "lib" / library)


def write(archive: zipfile.ZipFile, name: str, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(archive.read(name))


def move_whole(unpacked: Path, folder: Path) -> None:
    """Puts the folder in place in one step; another build that was faster wins."""
    try:
        unpacked.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


if __name__ == "__main__":
    sys.exit(main())
