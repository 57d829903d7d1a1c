"""Foreign files (CSV, gzipped CSV, Parquet), read by the importer of their origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from aicb.formats.imports import aiconfigurator, infersim, profile, vidur
from aicb.formats.imports.rows import Imported
from boundary.csv_text import check_width, column_places, csv_rows
from boundary.errors import InputError
from boundary.text_files import read_text, unreadable


def import_files(
    form: str, paths: Sequence[Path], conditions: Mapping[str, str] | None = None, heads: int | None = None
) -> Imported:
    """All rows of these files that meet the conditions.

    Args:
        form: ``aiconfigurator``, ``infersim``, ``vidur``, or ``profile`` (of ``aicb profile``).
        paths: files; each is one table.
        conditions: column → text that a row must have; columns a file lacks are ignored, but one has to have each.
        heads: query heads per rank where a table does not say (InferSim's MLA).

    Raises:
        InputError: a file that cannot be read, is no such table or has a bad value; no rows left; a condition on a
            column that no file has.
    """
    rows: list[dict[str, str]] = []
    cautions: list[str] = []
    tables = [(path, _read(path)) for path in paths]
    columns = dict.fromkeys(column for _, table in tables for row in table[:1] for column in row)
    for column in conditions or {}:
        if columns and column not in columns:
            raise InputError(f"where: found column {column!r}, expected one of {', '.join(columns)}")
    for path, table in tables:
        kept = [row for row in table if all(row.get(c, v) == v for c, v in (conditions or {}).items())]
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
        if not found:
            raise InputError(
                f"{path}: rows: found none that can be used ({'; '.join(warnings)}), expected at least one"
            )
        rows += found
        cautions += warnings
    return Imported(tuple(rows), tuple(cautions), tuple(f"{form}: {path.name}" for path in paths))


def _read(path: Path) -> list[dict[str, str]]:
    if path.suffix == ".parquet":
        return _read_parquet(path)
    rows = list(csv_rows(read_text(path, "a table").splitlines(keepends=True), str(path)))
    if not rows:
        raise InputError(f"{path}: found nothing, expected a header and rows")
    header, body = [cell.strip() for cell in rows[0][1]], rows[1:]
    if len(header) == len(infersim.DECODE_HEADER) and header[3].isdigit():
        header, body = infersim.DECODE_HEADER, rows  # InferSim's file without a header
    column_places(header, f"{path} line 1", [])
    for line, cells in body:
        check_width(cells, header, f"{path} line {line}")
    return [dict(zip(header, cells, strict=True)) for _, cells in body]


def _read_parquet(path: Path) -> list[dict[str, str]]:
    from pyarrow import ArrowException
    from pyarrow.parquet import read_table

    try:
        table = read_table(path)
    except ArrowException:
        raise InputError(f"{path}: found what is no Parquet file, expected a Parquet table") from None
    except OSError as error:
        raise unreadable(path, "a Parquet table", error) from None
    return [{str(k): "" if v is None else str(v) for k, v in row.items()} for row in table.to_pylist()]
