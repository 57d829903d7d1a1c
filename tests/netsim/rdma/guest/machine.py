"""Machine of a guest: QEMU without hardware acceleration, with folders of the host and a way to its loopback."""

from __future__ import annotations

import socket
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.netsim.rdma.guest.image import QEMU, Image

_ROOT: Final = Path(__file__).parents[4]
_MEMORY_MIB: Final = 1536


def shared_folders() -> list[Path]:
    """Folders of the host that a guest sees, read-only and under their own names: its programs and libraries, the
    interpreter that runs this, the repository, and what is installed for it."""
    wanted = [Path("/usr"), Path("/etc"), _ROOT, Path(sys.base_prefix), Path(sys.prefix)]
    wanted += [Path(sysconfig.get_path("purelib"))]
    resolved = sorted({path.resolve() for path in wanted})
    return [path for path in resolved if not any(path != other and path.is_relative_to(other) for other in resolved)]


class Machine:
    """A guest that runs ``run``, a script of the shell, in its folder ``job`` (``/job`` there) until it ends.

    It has one processor: with two, of which the host stops one at a time, acknowledgements stay away for seconds
    (rxe of Linux 6.1).

    Args:
        image: what it boots from.
        job: the folder.
        script: the commands.
        cable: to another guest, this end of a pair of connected sockets.
        number: of this guest among those that know each other; GIDs and GUIDs follow from it.
    """

    def __init__(
        self, image: Image, job: Path, script: str, cable: socket.socket | None = None, number: int = 0
    ) -> None:
        self._job = job
        (job / "run").write_text(script)
        shares = [(f"share{i}", path, str(path), "ro") for i, path in enumerate(shared_folders())]
        shares.append(("job", job, "/job", "rw"))
        listed = ",".join(f"{tag}:{path}:{mode}" for tag, _, path, mode in shares)
        inherited = () if cable is None else (cable.fileno(),)
        command = [
            *(QEMU, "-machine", "q35", "-accel", "tcg", "-cpu", "max", "-smp", "1"),
            *("-m", str(_MEMORY_MIB), "-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"),
            *("-kernel", str(image.kernel), "-initrd", str(image.initrd)),
            *("-append", f"console=ttyS0 quiet panic=-1 mitigations=off shares={listed}"),
            *(word for tag, folder, _, mode in shares for word in _share(tag, folder, mode)),
            *("-device", "virtio-rng-pci", *_nic(number, 1, "user")),
            *(word for descriptor in inherited for word in _nic(number, 2, "socket", f",fd={descriptor}")),
        ]
        self._started_s = time.monotonic()
        with (job / "console").open("wb") as console:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, pass_fds=inherited
            )

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self, within_s: float) -> float:
        """Seconds from power on to off, the script having ended well. Raises: AssertionError, with the console."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        took_s = time.monotonic() - self._started_s
        code = self._job / "code"
        found = code.read_text().strip() if code.exists() else "none"
        assert found == "0", f"exit code {found} after {took_s:.0f} s; console:\n{self.console()}"
        return took_s

    def console(self) -> str:
        """What the guest has written."""
        return (self._job / "console").read_text(errors="replace")


def _nic(guest: int, number: int, kind: str, options: str = "") -> tuple[str, ...]:
    name = f"net{number}"
    device = f"virtio-net-pci,netdev={name},mac=52:54:00:00:{guest:02x}:{number:02x}"
    return ("-netdev", f"{kind},id={name}{options}", "-device", device)


def _share(tag: str, folder: Path, mode: str) -> tuple[str, ...]:
    is_read_only = ",readonly=on" if mode == "ro" else ""
    source = f"local,id={tag},path={folder},security_model=none,multidevs=remap{is_read_only}"
    return ("-fsdev", source, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}")
