"""Command ``simccl calibrate``: corrections of NCCL's cost model from measured times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from boundary.command_line import print_summary
from boundary.errors import InputError
from boundary.output_files import check_output
from simccl.commands.options import Gpu, Json


def fit_corrections(
    *,
    tables: Annotated[
        list[Path], typer.Argument(help="Output of nccl-tests (its text), or CSV of times; several are joined.")
    ],
    gpu: Gpu = "h100",
    source: Annotated[str, typer.Option(help="What was measured, by whom, with which versions.")] = "",
    also: Annotated[str | None, typer.Option(help="GPU type whose shipped corrections fill what is missing.")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the calibration goes, JSON.")],
    as_json: Json = False,
) -> None:
    """Fit corrections of NCCL's cost model to measured times; ``simccl time --calibration FILE`` uses them."""
    from dataclasses import replace

    from simccl.calibrate.fitting import fit_calibration
    from simccl.calibrate.nccl_tests import read_measurements
    from simccl.communicator.gpus import gpu_named
    from simccl.planning.calibration import shipped_calibration, write_calibration

    found, fallback = gpu_named(gpu), None
    if also is not None and (fallback := shipped_calibration(gpu_named(also).name)) is None:
        raise InputError(f"also: found {also!r}, expected a GPU type with a shipped calibration")
    check_output(output, tables)
    measurements = read_measurements(tables)
    calibration = fit_calibration(measurements, found, source or ", ".join(path.name for path in tables))
    write_calibration(replace(calibration, also=fallback), output)
    worst = max(calibration.fits.items(), key=lambda item: item[1].median_error)
    result = {
        "gpu": found.name,
        "measurements": len(measurements),
        "cases": len(calibration.fits),
        "median_error": sorted(fit.median_error for fit in calibration.fits.values())[len(calibration.fits) // 2],
        "largest_error": worst[1].median_error,
        "largest_error_of": " ".join(str(part) for part in worst[0].label()),
        "output": str(output),
    }
    print_summary(result, as_json)
