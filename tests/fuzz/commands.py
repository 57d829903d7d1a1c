"""Runs commands in a forking worker, and tells good outcomes from findings."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.fuzz.case import Case, Outcome, Special, Verdict

LONGEST_MESSAGE = 400
MANIFEST = ".vidur-pd.json"
"""Says which files of a result folder are the program's own."""
LIMITS = {"cpu_s": 10.0, "memory_bytes": 3.0 * 2**30}

_BY_CONTRACT = re.compile(
    r"backend .*(needs|is not|not built|unavailable)|rdma|flow .*(gave it up|no end before)|memory: |"
    r"no measurement|is not measured|unmeasured|: estimate: ",
    re.IGNORECASE,
)
"""Messages of exit code 1 that are no fault of the input."""


class Commands:
    """A worker and a folder in which commands run; a context manager."""

    def __init__(self, limits: dict[str, float] = LIMITS) -> None:
        self._limits = limits
        self._folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self._worker = self._started()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, case: Case) -> Outcome:
        """Runs one command in a fresh folder."""
        place = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            work = place / "work"
            work.mkdir()
            case.write(work)
            with _silent_writers(case, work):
                answer = self._ask({"argv": list(case.argv), "folder": str(place), "limits": self._limits})
            stdout, stderr, stack, raised = (_content(place / name) for name in ("stdout", "stderr", "stack", "raised"))
            left = _problems(case, work, answer["exit_code"])
            return Outcome(
                stdout=stdout,
                stderr=stderr,
                stack=stack.decode(errors="replace"),
                raised=_after_root(raised.decode(errors="replace")),
                problems=tuple(left),
                **answer,
            )
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.write(json.dumps(request) + "\n")
        self._worker.stdin.flush()
        if not (line := self._worker.stdout.readline()):
            raise RuntimeError(f"the worker ended with {self._worker.wait()}")
        return dict(json.loads(line))

    def _started(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=Path(__file__).parents[2],
        )
        assert worker.stdout is not None
        assert json.loads(worker.stdout.readline())["ready"]
        return worker

    def _stop(self) -> None:
        assert self._worker.stdin is not None
        self._worker.stdin.close()
        self._worker.wait(timeout=60)
        if self._worker.stdout is not None:
            self._worker.stdout.close()


@contextmanager
def _silent_writers(case: Case, work: Path) -> Iterator[None]:
    """Someone at the other end of every pipe, who opens it and leaves."""
    pipes = [work / name for name, content in case.files.items() if content is Special.FIFO]
    is_over = threading.Event()

    def leave() -> None:
        while not is_over.wait(0.005):
            for pipe in pipes:
                with suppress(OSError):
                    os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))

    writer = threading.Thread(target=leave)
    if pipes:
        writer.start()
    try:
        yield
    finally:
        is_over.set()
        if pipes:
            writer.join()


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _problems(case: Case, work: Path, exit_code: int | None) -> list[str]:
    """Inputs that changed, and files that should not be there."""
    problems = []
    for name, content in case.files.items():
        path = work / name
        if not os.path.lexists(path):
            problems.append(f"input {name} is gone")
        elif isinstance(content, bytes) and (path.is_symlink() or not path.is_file() or path.read_bytes() != content):
            problems.append(f"input {name} has changed")
        elif content is Special.DIRECTORY and not path.is_dir():
            problems.append(f"input {name} is no folder any more")
    allowed = {Path(name).parts[0] for name in case.files}
    if exit_code in (0, 1):
        allowed |= {Path(name).parts[0] for name in case.outputs}
    problems += [f"left {path.name} behind" for path in work.iterdir() if path.name not in allowed]
    hidden = (path for path in work.rglob("*") if path.name.startswith(".") or path.suffix in (".part", ".tmp"))
    known = {work / name for name in case.files}
    return problems + [f"left {path.name} behind" for path in hidden if path not in known and path.name != MANIFEST]


def judged(case: Case, outcome: Outcome) -> tuple[Verdict, str]:
    """The verdict, and in a few words why."""
    if outcome.signal is not None:
        name = signal.Signals(outcome.signal).name
        return Verdict.FINDING, f"hang (not interruptible): {_place(outcome.stack)}" if outcome.is_late else name
    text = outcome.stderr.decode(errors="replace")
    if "Traceback (most recent call last)" in text:
        last = _generalised(text.strip().splitlines()[-1])
        late = "hang: " if outcome.is_late else ""
        return Verdict.FINDING, f"{late}traceback: {last[:90]} at {_raised_at(text)}"
    if outcome.problems:
        return Verdict.FINDING, outcome.problems[0]
    if outcome.exit_code == 130 and outcome.is_late and (not text or not _wrong_message(case, text)):
        return Verdict.INTERRUPTED, _place(outcome.stack)
    if outcome.is_late:
        return Verdict.FINDING, f"hang: {_place(outcome.stack)}"
    match outcome.exit_code:
        case 0:
            return _judged_success(case, outcome, text)
        case 1 | 2 if wrong := _wrong_message(case, text):
            return Verdict.FINDING, f"{wrong} made in {outcome.raised or _generalised(text)}"
        case 2:
            return Verdict.REFUSED, ""
        case 1 if _BY_CONTRACT.search(text):
            return Verdict.FAILED, _generalised(text)
    return Verdict.FINDING, f"exit code {outcome.exit_code}: {_generalised(text)}"


def _judged_success(case: Case, outcome: Outcome, stderr: str) -> tuple[Verdict, str]:
    if "Warning:" in stderr:
        return Verdict.FINDING, f"warning: {_generalised(stderr)}"
    if "--json" in case.argv and "--help" not in case.argv:
        try:
            json.loads(outcome.stdout, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            return Verdict.FINDING, f"standard output is not JSON: {error}"
    return Verdict.OK, ""


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def _wrong_message(case: Case, text: str) -> str | None:
    """What is wrong with a message, if anything."""
    lines = text.removesuffix("\n").split("\n")
    if not text.strip():
        return "no message"
    if len(lines) > 1 and not all(line.startswith(f"{case.program}: ") for line in lines):
        return "several lines"
    if not lines[-1].startswith(f"{case.program}: "):
        return "message without the program's name"
    if (longest := max(map(len, lines))) > LONGEST_MESSAGE:
        return f"message of more than {2000 if longest > 2000 else LONGEST_MESSAGE} characters"
    for character in "".join(lines):
        if unicodedata.category(character) in ("Cc", "Zl", "Zp", "Cs") or unicodedata.bidirectional(character) in _BIDI:
            return "control character in a message"
    return None


_BIDI = ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")


def _raised_at(text: str) -> str:
    """File and line of the innermost frame of ours."""
    frames = re.findall(r'File "([^"]*)", line (\d+), in (\S+)', text)
    ours = [frame for frame in frames if re.search(r"/(vidur_pd|netsim|simccl|aicb|boundary)/", frame[0])]
    return _shortened(ours[-1]) if ours else "?"


def _place(stack: str) -> str:
    frames = re.findall(r'File "([^"]*)", line (\d+) in (\S+)', stack)
    frames = [frame for frame in frames if not frame[0].endswith("boundary/interruption.py")]  # watches the others
    ours = [frame for frame in frames if re.search(r"/(vidur_pd|netsim|simccl|aicb|boundary)/", frame[0])]
    return _shortened(ours[0]) if ours else (_shortened(frames[0]) if frames else "?")


def _shortened(frame: tuple[str, str, str]) -> str:
    return f"{_after_root(frame[0])}:{frame[1]} {frame[2]}"


def _after_root(path: str) -> str:
    return re.sub(r".*/(?=(vidur_pd|netsim|simccl|aicb|boundary)/)", "", path)


def _generalised(text: str) -> str:
    """A message without what differs from case to case."""
    shown = re.sub(r"'[^']{0,2000}'|\"[^\"]{0,2000}\"", "'…'", text.strip()[:3000])
    return ascii(re.sub(r"-?\d[\d.e+]*", "N", shown)[:160])[1:-1]
