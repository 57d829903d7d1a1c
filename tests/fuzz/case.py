"""A command line with the files that it is given, and what became of it."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class Special(StrEnum):
    """Things at the place of a file that are no file."""

    DIRECTORY = "directory"
    FIFO = "fifo"
    """A pipe whose writer leaves without a word."""
    NULL_DEVICE = "null device"
    """A link to /dev/null."""
    LOOP = "loop"
    """A symbolic link to itself."""
    DANGLING = "dangling"
    """A symbolic link to nothing."""


@dataclass(frozen=True, slots=True)
class Case:
    """One command, run in a fresh folder that holds ``files``."""

    argv: tuple[str, ...]
    """The program (``vidur-pd``, ``netsim``, ``simccl``, ``aicb``) and its arguments."""
    files: dict[str, bytes | Special] = field(default_factory=dict)
    """Inputs by relative path."""
    outputs: tuple[str, ...] = ()
    """What the command may leave behind when it succeeds."""

    @property
    def program(self) -> str:
        return self.argv[0]

    def is_possible(self) -> bool:
        """Whether an operating system can hand over these arguments and hold these files at all."""
        return all(_is_text_of_the_system(text) for text in (*self.argv, *self.files))

    def write(self, folder: Path) -> None:
        """Creates the files."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            match content:
                case bytes():
                    path.write_bytes(content)
                case Special.DIRECTORY:
                    path.mkdir()
                case Special.FIFO:
                    os.mkfifo(path)
                case Special.NULL_DEVICE:
                    path.symlink_to("/dev/null")
                case Special.LOOP:
                    path.symlink_to(path.name)
                case Special.DANGLING:
                    path.symlink_to("nowhere")

    def shown(self) -> str:
        """The command as typed into a shell, and the beginnings of its files."""
        command = shlex.join(argument if len(argument) <= 300 else f"{argument[:300]}…" for argument in self.argv)
        parts = [f"{name} ({_size(content)}): {content[:600]!r}" for name, content in self.files.items()]
        return "\n  ".join([ascii(command)[1:-1], *parts])


def _size(content: bytes | Special) -> str:
    return f"{len(content)} bytes" if isinstance(content, bytes) else "special"


def _is_text_of_the_system(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


class Verdict(StrEnum):
    """What an outcome means."""

    OK = "ok"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"
    """Took longer than the limit, and ended in one line and exit code 130 after SIGINT."""
    FAILED = "failed"
    """Exit code 1, where the contract says so: a missing backend, flows that do not arrive, a wrong plan, a shape
    without measurement, a problem that memory has no room for."""
    FINDING = "finding"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command did."""

    exit_code: int | None
    """``None`` where a signal ended it."""
    signal: int | None
    stdout: bytes
    stderr: bytes
    """With the Python stack of a crash, which the worker lets the interpreter write there."""
    stack: str
    """Where it stood when its time was over."""
    raised: str
    """Where the last error of bad input was made."""
    cpu_s: float
    wall_s: float
    is_late: bool
    """Whether it was interrupted."""
    problems: tuple[str, ...] = ()
    """What is wrong with the files it left."""
