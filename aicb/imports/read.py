"""Reads foreign files (CSV, gzipped CSV, Parquet) and hands their rows to the importer of their origin."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

from aicb.imports import aiconfigurator, infersim, profile, vidur
from aicb.imports.rows import Imported
from boundary.errors import InputError


def import_files(
    form: str, paths: Sequence[Path], conditions: Mapping[str, str] | None = None, heads: int | None = None
) -> Imported:
    """All rows of these files that meet the conditions.

    Args:
        form: ``aiconfigurator``, ``infersim``, ``vidur``, or ``profile`` (of ``aicb profile``).
        paths: files; each is one table.
        conditions: column → text that a row must have; columns a file lacks are ignored.
        heads: query heads per rank where a table does not say (InferSim's MLA).

    Raises:
        InputError: a file that cannot be read, is no such table or has a bad value; no rows left.
    """
    rows: list[dict[str, str]] = []
    cautions: list[str] = []
    for path in paths:
        kept = [row for row in _read(path) if all(row.get(c, v) == v for c, v in (conditions or {}).items())]
        if not kept:
            raise InputError(f"{path}: rows: found none that meet {dict(conditions or {})}, expected at least one")
        match form:
            case "aiconfigurator":
                found, warnings = aiconfigurator.read(kept, path.name)
            case "infersim":
                found, warnings = infersim.read(kept, path.name, heads)
            case "vidur":
                found, warnings = vidur.read(kept, path.name)
            case "profile":
                found, warnings = profile.read(kept, path)
            case _:
                raise InputError(f"format: found {form!r}, expected aiconfigurator, infersim, vidur or profile")
        rows += found
        cautions += warnings
    return Imported(tuple(rows), tuple(cautions), tuple(f"{form}: {path.name}" for path in paths))


def _read(path: Path) -> list[dict[str, str]]:
    try:
        if path.suffix == ".parquet":
            return _read_parquet(path)
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            lines = list(csv.reader(file))
    except OSError as error:
        raise InputError(f"{path}: file: {error.strerror or error}, expected a readable table") from None
    except (UnicodeDecodeError, csv.Error, EOFError) as error:
        raise InputError(f"{path}: file: {error}, expected a CSV table") from None
    if not lines:
        raise InputError(f"{path}: file: found nothing, expected a header and rows")
    header, body = [cell.strip() for cell in lines[0]], lines[1:]
    if len(header) == len(infersim.DECODE_HEADER) and header[3].isdigit():
        header, body = infersim.DECODE_HEADER, lines  # InferSim's file without a header
    for number, cells in enumerate(body, start=2):
        if cells and len(cells) != len(header):
            raise InputError(f"{path}: line {number}: found {len(cells)} cells, expected {len(header)}")
    return [dict(zip(header, cells, strict=True)) for cells in body if cells]


def _read_parquet(path: Path) -> list[dict[str, str]]:
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import read_table

    try:
        table = read_table(path)
    except ArrowInvalid as error:
        raise InputError(f"{path}: file: {error}, expected a Parquet table") from None
    return [{str(k): "" if v is None else str(v) for k, v in row.items()} for row in table.to_pylist()]
