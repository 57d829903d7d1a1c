"""Image of a guest: Debian's kernel with the modules of Soft-RoCE, and an initial RAM disk that runs a job.

Nothing is installed: the package of the kernel is downloaded and unpacked. Everything else is the host's.
"""

from __future__ import annotations

import lzma
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[4] / "build" / "guest"
_HERE: Final = Path(__file__).parent
_KERNEL: Final = "linux-image-amd64"
"""Depends on the kernel's package of the day. That of clouds has neither rdma_rxe nor 9p."""
_MODULES: Final = (
    *("crc32_generic", "crc32_pclmul"),  # without the first no rxe device can be added
    *("virtio_pci", "virtio_net", "virtio_rng", "9pnet_virtio", "9p"),
    *("rdma_rxe", "ib_uverbs", "rdma_ucm"),
    *("veth", "sch_tbf"),
)
_UNPACKED: Final = (
    "./boot/vmlinuz-*",
    "./lib/modules/*/modules.*",
    *(f"./lib/modules/*/kernel/{folder}/*" for folder in ("arch", "crypto", "fs", "lib", "net")),
    *(f"./lib/modules/*/kernel/drivers/{folder}/*" for folder in ("char", "infiniband", "virtio")),
    *(f"./lib/modules/*/kernel/drivers/net/{name}.ko*" for name in ("net_failover", "veth", "virtio_net")),
)
QEMU: Final = "qemu-system-x86_64"
_PROGRAMS: Final = (QEMU, "apt-cache", "apt-get", "dpkg-deb", "depmod", "modprobe", "cpio", "busybox")


class MissingError(Exception):
    """Something that this system does not have or does not allow; the message is why there is no guest."""


@dataclass(frozen=True, slots=True)
class Image:
    """Files that QEMU boots from; what they hold is not compressed, as emulation would take seconds to undo it."""

    kernel: Path
    initrd: Path


def guest_image() -> Image:
    """The image, built where it is not there yet (10 s and a download of 70 MB). Raises: MissingError."""
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        raise MissingError(f"{', '.join(missing)}: not installed")
    package = _kernel_package()
    folder = FOLDER / package
    image = Image(folder / "vmlinux", folder / "initrd")
    if not image.initrd.exists():
        shutil.rmtree(folder, ignore_errors=True)
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as name:
            work = Path(name)
            _build(package, work)
            made = work / "image"
            if not folder.exists():
                made.rename(folder)
    return image


def _kernel_package() -> str:
    shown = subprocess.run(("apt-cache", "depends", _KERNEL), capture_output=True, text=True, check=False)
    for line in shown.stdout.splitlines():
        relation, _, found = line.strip().partition(": ")
        if relation == "Depends" and found.startswith("linux-image-"):
            return found
    raise MissingError(f"apt knows no package {_KERNEL} (Debian's kernel for guests)")


def _build(package: str, work: Path) -> None:
    try:
        _output("apt-get", "download", package, folder=work)
    except subprocess.CalledProcessError as error:
        raise MissingError(f"apt-get download {package}: {_last_line(error.stderr)}") from None
    (archive,) = work.glob("*.deb")
    unpacked = work / "kernel"
    unpacked.mkdir()
    with subprocess.Popen(("dpkg-deb", "--fsys-tarfile", archive), stdout=subprocess.PIPE) as contents:
        filters = ("--extract", "--wildcards", "--directory", str(unpacked), *_UNPACKED)
        subprocess.run(("tar", *filters), stdin=contents.stdout, check=True)
    (kernel,) = (unpacked / "boot").glob("vmlinuz-*")
    version = kernel.name.removeprefix("vmlinuz-")
    _output("depmod", "--basedir", str(unpacked), version)
    image = work / "image"
    image.mkdir()
    (image / "vmlinux").write_bytes(_decompressed(kernel.read_bytes()))
    _pack(_modules_in_order(unpacked, version), work / "root", image / "initrd")


def _decompressed(kernel: bytes) -> bytes:
    """The kernel as ELF, by whose PVH entry QEMU starts it, out of a bzImage, which has it compressed by xz."""
    start = kernel.find(b"\xfd7zXZ\x00")
    if start < 0:
        raise MissingError("the kernel's package holds no kernel compressed by xz")
    return lzma.LZMADecompressor().decompress(kernel[start:])


def _modules_in_order(unpacked: Path, version: str) -> list[Path]:
    """Modules and what they need, each behind what it needs."""
    found: dict[Path, None] = {}
    for module in _MODULES:
        shown = _output("modprobe", "--dirname", str(unpacked), "--set-version", version, "--show-depends", module)
        for line in shown.splitlines():
            kind, _, path = line.strip().partition(" ")
            if kind == "insmod":
                found[Path(path.split()[0])] = None
    return list(found)


def _pack(modules: Sequence[Path], root: Path, initrd: Path) -> None:
    for folder in ("bin", "modules", "proc", "sys", "dev", "new"):
        (root / folder).mkdir(parents=True)
    names = []
    for module in modules:
        name = module.name.removesuffix(".xz")
        content = module.read_bytes()
        (root / "modules" / name).write_bytes(lzma.decompress(content) if name != module.name else content)
        names.append(name)
    (root / "modules" / "order").write_text("".join(f"{name}\n" for name in names))
    shutil.copy(str(shutil.which("busybox")), root / "bin" / "busybox")
    shutil.copy(_HERE / "init", root / "init")
    (root / "init").chmod(0o755)
    files = "".join(f"{path.relative_to(root)}\n" for path in sorted(root.rglob("*")))
    with initrd.open("wb") as packed:
        command = ("cpio", "--create", "--format=newc", "--quiet")
        subprocess.run(command, input=files.encode(), cwd=root, stdout=packed, stderr=subprocess.PIPE, check=True)


def _output(*command: str, folder: Path | None = None) -> str:
    return subprocess.run(command, cwd=folder, capture_output=True, check=True, text=True).stdout


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "failed"
