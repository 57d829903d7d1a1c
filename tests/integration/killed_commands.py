"""Commands that are killed: a process with the simulator loaded forks for each, so that hundreds take minutes.

Speaks JSON lines. In: ``{"argv", "folder", "signal", "after_s", "sight"}``. Out: how the command ended, what it said,
and whether it was still running when the signal was sent.
"""

from __future__ import annotations

import contextlib
import glob
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
LONGEST_S = 60.0
WARM_UP = {
    "model": "qwen3-8b",
    "hardware": "h200",
    "workload": {
        "kind": "synthetic",
        "requests": 2,
        "arrivals": {"kind": "static"},
        "lengths": {"kind": "fixed", "prefill": 300, "decode": 2},
    },
    "cluster": {
        "topology": {"kind": "rail_optimized", "gpus_per_node": 2},
        "pools": [{"name": "prefill", "role": "prefill"}, {"name": "decode", "role": "decode"}],
    },
    "engine": {"estimator": "roofline"},
}


@dataclass(frozen=True, slots=True)
class End:
    """How a command ended."""

    code: int
    """Exit code; negative the number of the signal that it died of."""
    stderr: str
    was_running: bool
    took_s: float


class Commands:
    """``vidur-pd`` commands, one at a time, in child processes."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.killed_commands"],
            cwd=ROOT,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(timeout=LONGEST_S)
        assert self._server.stdout is not None
        self._server.stdout.close()

    def run(
        self,
        *argv: str | Path,
        folder: Path = ROOT,
        sent: signal.Signals | None = None,
        after_s: float = 0.0,
        sight: str | None = None,
    ) -> End:
        """Runs a command in a folder.

        Args:
            argv: without the program's name.
            folder: where it runs.
            sent: a signal that it gets, if any.
            after_s: when, after its start.
            sight: or after there is a file of this pattern.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        order = {"argv": [*map(str, argv)], "folder": str(folder), "signal": sent, "after_s": after_s, "sight": sight}
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        return End(**json.loads(self._server.stdout.readline()))


def _serve() -> None:
    import rich.table
    import yaml

    import vidur_pd.metrics.timeline
    from vidur_pd.__main__ import compare

    del rich, vidur_pd
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        config = Path(folder) / "config.yaml"
        config.write_text(yaml.safe_dump(WARM_UP))
        compare(config, Path(folder) / "out", as_json=True)  # loads and builds what is put off
    for line in sys.stdin:
        print(json.dumps(_ended(json.loads(line))), flush=True)


def _ended(order: dict[str, object]) -> dict[str, object]:
    with tempfile.TemporaryFile() as said:
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup
            os.chdir(str(order["folder"]))
            _become(list(map(str, order["argv"])), said.fileno())  # type: ignore[call-overload]
        was_running = False
        if order["signal"] is not None:
            while order["sight"] and not glob.glob(str(order["sight"])) and not _is_over(child):
                time.sleep(0.0005)
            time.sleep(float(str(order["after_s"])))
            was_running = not _is_over(child)
            if was_running:
                os.kill(child, int(str(order["signal"])))
        status = _status_of(child, started)
        said.seek(0)
        return {
            "code": os.waitstatus_to_exitcode(status),
            "stderr": said.read().decode(),
            "was_running": was_running,
            "took_s": time.monotonic() - started,
        }


def _is_over(child: int) -> bool:
    """Whether it has ended, which is left to be asked for again."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _status_of(child: int, started: float) -> int:
    while time.monotonic() < started + LONGEST_S:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    raise TimeoutError(f"a command was still running after {LONGEST_S} s")


def _become(argv: list[str], stderr: int) -> None:
    from vidur_pd.__main__ import main

    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(stderr, 2)
    sys.argv = ["vidur-pd", *argv]
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 99
    finally:
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    _serve()
