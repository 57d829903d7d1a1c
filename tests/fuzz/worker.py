"""A process that has the four packages loaded and forks for every command: thousands of them per minute.

Speaks JSON lines on standard input and output: ``{"argv", "folder", "limits"}`` in, the way the child ended out. The
child runs in ``folder/work``, with ``folder/stdout``, ``stderr`` and ``stack`` beside it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import pkgutil
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

PROGRAMS = {"vidur-pd": "vidur_pd", "netsim": "netsim", "simccl": "simccl", "aicb": "aicb"}
GRACE_S = 3.0
"""Time to answer an interrupt."""


def load_packages() -> None:
    """Imports every module, as commands import most of theirs late; what needs a GPU or is not installed is left."""
    for package in PROGRAMS.values():
        root = importlib.import_module(package)
        for module in pkgutil.walk_packages(root.__path__, f"{package}."):
            if ".profiling" in module.name or module.name.endswith("__main__"):
                continue
            try:
                importlib.import_module(module.name)
            except ImportError:
                continue
    for package in PROGRAMS.values():
        importlib.import_module(f"{package}.__main__")
    for library in ("pandas", "rich.progress", "rich.table", "pyarrow.parquet", "yaml"):
        importlib.import_module(library)


def build_models() -> None:
    """Builds what pydantic defers, which every command would do again."""
    from netsim.roce.config import RoceConfig
    from netsim.topologies.build import parse_spec
    from vidur_pd.config import SimulationConfig
    from vidur_pd.config.workload import WorkloadFile

    parse_spec({"kind": "nvswitch"})
    for model in (RoceConfig, SimulationConfig, WorkloadFile):
        model.model_rebuild()


def run_child(argv: list[str], folder: Path, limits: dict[str, float]) -> None:
    """Becomes the command; does not return."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, descriptor, flags in (
        ("/dev/null", 0, os.O_RDONLY),
        ("stdout", 1, os.O_WRONLY),
        ("stderr", 2, os.O_WRONLY),
    ):
        opened = os.open(folder / name, flags | os.O_CREAT | os.O_APPEND if descriptor else flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode) for number, mode in ((0, "r"), (1, "w"), (2, "w")))  # noqa: SIM115
    os.chdir(folder / "work")
    address_space = _virtual_bytes() + int(limits["memory_bytes"])
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable(sys.stderr)
    stack = open(folder / "stack", "w")  # noqa: SIM115
    faulthandler.register(signal.SIGUSR1, stack)
    sys.argv = argv
    raised = _record_errors()
    code = 1
    try:
        importlib.import_module(f"{PROGRAMS[argv[0]]}.__main__").main()
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        if isinstance(exit_.code, str):
            sys.stderr.write(f"{exit_.code}\n")
    except BaseException:
        traceback.print_exc()
    (folder / "raised").write_text(raised[-1] if raised else "")
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = 120  # what Python exits with when it cannot flush
    os._exit(code)


def _record_errors() -> list[str]:
    """Where errors of bad input are made, in order: what messages do not say, and causes are sorted by."""
    errors = importlib.import_module("boundary.errors")
    raised: list[str] = []

    def initialise(self: ValueError, *arguments: object) -> None:
        ValueError.__init__(self, *arguments)
        code = sys._getframe(1).f_code
        if code.co_name == "refuse" or code.co_name == "refused":
            code = sys._getframe(2).f_code
        raised.append(f"{code.co_filename.rpartition('site-packages/')[2]} {code.co_name}")

    errors.InputError.__init__ = initialise
    return raised


def watch(child: int, limits: dict[str, float]) -> dict[str, Any]:
    """Waits for the child; interrupts it when its time is over, and kills it if it does not answer."""
    started_s = time.monotonic()
    interrupted_s: float | None = None
    pause_s = 0.001
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        wall_s = time.monotonic() - started_s
        if ended:
            break
        if interrupted_s is None and _is_over(child, wall_s, limits):
            os.kill(child, signal.SIGUSR1)
            time.sleep(0.05)
            os.kill(child, signal.SIGINT)
            interrupted_s = wall_s
        elif interrupted_s is not None and wall_s > interrupted_s + GRACE_S:
            os.killpg(child, signal.SIGKILL)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return {
        "exit_code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "wall_s": wall_s,
        "is_late": interrupted_s is not None,
    }


def _is_over(child: int, wall_s: float, limits: dict[str, float]) -> bool:
    """Time is that of the processor, as others may share it; a child that only waits has a limit of its own."""
    if wall_s < limits["cpu_s"]:
        return False
    cpu_s = _cpu_s(child)
    return cpu_s > limits["cpu_s"] or (cpu_s < 1 and wall_s > limits["cpu_s"]) or wall_s > 6 * limits["cpu_s"]


def _cpu_s(child: int) -> float:
    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _virtual_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Serves until standard input ends."""
    load_packages()
    build_models()
    gc.collect()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    requests = os.fdopen(os.dup(0), "r")
    answers.write('{"ready": true}\n')
    answers.flush()
    for line in requests:
        request = json.loads(line)
        child = os.fork()
        if not child:
            run_child(request["argv"], Path(request["folder"]), request["limits"])
        answers.write(json.dumps(watch(child, request["limits"])) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
