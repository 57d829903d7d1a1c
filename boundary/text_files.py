"""Text files that anyone may have written: read whole up to a bound, with every fault as one line."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from pathlib import Path
from typing import Final

from boundary.errors import InputError

MOST_TEXT_BYTES: Final = 2**28
"""Longest text that is read whole; a topology of 100,000 GPUs has 60 MB."""
GZIP_MAGIC: Final = b"\x1f\x8b"
"""First two bytes of every gzip member (RFC 1952, section 2.3.1)."""


def read_text(path: Path, expected: str, most_bytes: int = MOST_TEXT_BYTES) -> str:
    """The UTF-8 text of a file, plain or gzip; a byte-order mark is dropped, line ends stay. Pipes are read as well.

    Args:
        path: file, or a pipe such as ``/dev/stdin``.
        expected: what the file should have been, for messages.
        most_bytes: longest content; not more than that is read.

    Raises:
        InputError: naming the file where it cannot be opened, is no text, or is longer.
    """
    data = _unpacked(read_bytes(path, expected, most_bytes), path, expected, most_bytes)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path} line {line}: found bytes that are not UTF-8, expected {expected}") from None


def read_bytes(path: Path, expected: str, most_bytes: int = MOST_TEXT_BYTES) -> bytes:
    """The content of a file.

    Raises:
        InputError: naming the file where it cannot be opened, or is longer than ``most_bytes``.
    """
    check_readable(path, expected)
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise unreadable(path, expected, error) from None
    if len(data) > most_bytes:
        raise InputError(f"{path}: found more than {most_bytes} bytes, expected {expected} of at most that size")
    return data


def _unpacked(data: bytes, path: Path, expected: str, most_bytes: int) -> bytes:
    if not data.startswith(GZIP_MAGIC):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            unpacked = file.read(most_bytes + 1)
    except (OSError, EOFError, zlib.error):
        raise InputError(f"{path}: found a damaged gzip file, expected {expected}") from None
    if len(unpacked) > most_bytes:
        raise InputError(f"{path}: found more than {most_bytes} bytes, expected {expected} of at most that size")
    return unpacked


def check_readable(path: Path, expected: str) -> None:
    """Refuses what cannot be opened as a file, folders and devices that never end included.

    Raises:
        InputError: naming the file and why.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise unreadable(path, expected, error) from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{path}: found a folder, expected {expected}")


def unreadable(path: Path, expected: str, error: Exception) -> InputError:
    """The error for a file that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path}: found no such file, expected {expected}")
    reason = getattr(error, "strerror", None) or "a name that no file can have"
    return InputError(f"{path}: cannot be read ({str(reason).lower()}), expected {expected}")
