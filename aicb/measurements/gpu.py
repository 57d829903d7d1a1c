"""GPUs: nominal peaks and memory, as far as times and memory plans need them.

A GPU is a YAML file with the fields of `Gpu`: ``gpus/NAME.yaml`` for the built-in ones, ``FOLDER/gpu.yaml`` for any
other, with its measured kernel times (``kernels.csv`` and ``provenance.json``, see ``table.py``), if there are any.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aicb.data import FOLDER
from aicb.measurements.clock import ClockLaw
from aicb.model.precision import GemmDtype, Precision, WeightDtype
from boundary.errors import InputError
from boundary.quoting import quoted
from boundary.text_files import read_text
from boundary.yaml_text import parse_yaml_mapping

MIB = 2**20
MEASURED_GPU = "h200"
"""Whose kernel times and clock law stand for those of a GPU that was not measured."""
TABLE_FILE = "kernels.csv"
"""A folder with this file holds a table of measured kernel times."""


class _PeakFlops(dict[GemmDtype, float]):
    """FLOP/s per number format of a named device."""

    def __init__(self, gpu: str, *, bf16: float):
        super().__init__({"bf16": bf16})
        self._gpu = gpu

    def __missing__(self, dtype: GemmDtype) -> float:
        raise InputError(f"weights or KV: found arithmetic in {dtype}, expected bf16 ({self._gpu} has no {dtype})")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU (SXM module). Peaks are dense tensor-core rates of the data sheet, without sparsity."""

    name: str
    hbm_bytes: int
    """Memory that the driver reports."""
    hbm_bytes_per_s: float
    """Nominal bandwidth."""
    peak_bf16_flops: float
    peak_fp8_flops: float | None
    """``None`` where the tensor cores have no fp8."""
    sms: int
    l2_bytes: int
    source: str
    clock: ClockLaw | None = None
    """Law by which the SM clock falls under load. Times are taken as measured if absent."""
    clock_as: str | None = None
    """GPU whose measured law ``clock`` was transferred from."""
    architecture: str | None = None
    """Of its SMs: sm90, gfx942, ...; times of GPUs that share it are transferred with less error."""
    boost_mhz: float | None = None
    """SM clock at which the peaks are stated."""
    power_w: float | None = None
    """Power limit of the board."""
    matmul_share: float | None = None
    """Share of the bf16 peak that the best published product reaches, where that falls short of the measured GPU's."""
    interconnect_as: str | None = None
    """GPU whose NVLink and collectives stand for this one's where a collectives model does not know it."""
    host_bytes_per_s: float | None = None
    """Nominal rate of its link to the host's memory, per direction; 63 GB/s, PCIe 5.0 x16, where it is not stated."""
    table: Path | None = None
    """Folder of its measured kernel times."""

    @property
    def times_as(self) -> str | None:
        """GPU whose measured times are transferred to this one; absent where it has times of its own."""
        return MEASURED_GPU if self.table is None else None

    @property
    def interconnect(self) -> str:
        """Name under which a collectives model finds its links."""
        return self.interconnect_as or self.name

    @property
    def peak_flops(self) -> Mapping[GemmDtype, float]:
        """FLOP/s per number format; fp8 is missing where the device has none.

        Raises:
            InputError: on access to a format that is missing.
        """
        peaks = _PeakFlops(self.name, bf16=self.peak_bf16_flops)
        if self.peak_fp8_flops is not None:
            peaks["fp8"] = self.peak_fp8_flops
        return MappingProxyType(peaks)

    def weights_of(self, published: WeightDtype) -> WeightDtype:
        """Format of weights where nobody chooses one: as published, but bf16 for fp8 where the device has none."""
        return "bf16" if published == "fp8" and "fp8" not in self.peak_flops else published

    def check(self, precision: Precision, field: str = "weights") -> None:
        """Whether the device computes in this format, which ``field`` states.

        Raises:
            InputError: fp8 weights on a GPU without fp8 tensor cores.
        """
        if precision.dense not in self.peak_flops:
            raise InputError(f"{field}: found {precision.weights}, expected bf16 ({self.name} has no fp8)")


def known_gpus() -> list[str]:
    """Names that `get_gpu` knows."""
    return sorted(file.stem for file in (FOLDER / "gpus").iterdir() if file.suffix == ".yaml")


def canonical_gpu(name_or_path: str) -> str:
    """The name of a built-in GPU as it is listed, whatever the case of its letters; anything else as it is."""
    lower = name_or_path.lower()
    return lower if lower in known_gpus() else name_or_path


def gpu_of_device(device: str) -> str | None:
    """The built-in GPU that a driver calls so (``NVIDIA H100 80GB HBM3``); ``None``: none of them."""
    words = re.split(r"[^a-z0-9]+", device.lower())
    return next((name for name in known_gpus() if name in words), None)


@cache
def get_gpu(name_or_path: str) -> Gpu:
    """A built-in GPU by name in any case of letters, or one by the path of ``gpu.yaml`` or of a folder with it.

    Raises:
        InputError: unknown name (the known ones are named); an unreadable file, or a field that is missing or wrong.
    """
    if (name := canonical_gpu(name_or_path)) in known_gpus():
        text = (FOLDER / "gpus" / f"{name}.yaml").read_text(encoding="utf-8")
        return _parse(text, f"gpus/{name}.yaml", FOLDER / name)
    path = Path(name_or_path)
    if os.path.isdir(path):
        path = path / "gpu.yaml"
    if path.suffix == ".yaml":
        return _parse(read_text(path, "a description of a GPU"), str(path), path.parent)
    known = ", ".join(known_gpus())
    raise InputError(f"gpu: found {quoted(name_or_path)}, expected one of {known}, or a folder with gpu.yaml")


def gpu_files(name_or_path: str) -> list[Path]:
    """Files that `get_gpu` and the estimators read, which a command must not write over; none of a built-in name."""
    if canonical_gpu(name_or_path) in known_gpus():
        return []
    path = Path(name_or_path)
    folder = path if path.is_dir() else path.parent
    parts = [found for found in folder.glob("*.parquet") if found.with_suffix(f".{_PROVENANCE}").exists()]
    return [folder / "gpu.yaml", path, folder / TABLE_FILE, *folder.glob(f"*{_PROVENANCE}"), *parts]


_PROVENANCE = "provenance.json"
_INTEGERS = ("hbm_bytes", "sms", "l2_bytes")
_OPTIONAL_NUMBERS = ("peak_fp8_flops", "boost_mhz", "power_w", "matmul_share", "host_bytes_per_s")
_NUMBERS = ("hbm_bytes_per_s", "peak_bf16_flops", *_OPTIONAL_NUMBERS)
_TEXTS = ("name", "source", "interconnect_as", "architecture")
_LIMITS = {
    "hbm_bytes": (2**20, 2**50),
    "sms": (1, 100_000),
    "l2_bytes": (1, 2**40),
    "hbm_bytes_per_s": (1e6, 1e18),
    "peak_bf16_flops": (1e6, 1e21),
    "peak_fp8_flops": (1e6, 1e21),
    "boost_mhz": (1, 1e6),
    "power_w": (1, 1e6),
    "matmul_share": (1e-3, 1),
    "host_bytes_per_s": (1e6, 1e14),
}
"""A thousand times and more around the devices there are; times of kernels stay within the clock."""
_OPTIONAL = frozenset({"interconnect_as", "architecture", *_OPTIONAL_NUMBERS})


def _parse(text: str, where: str, folder: Path) -> Gpu:
    document = parse_yaml_mapping(text, where, "a description of a GPU")
    for key in document:
        if key not in (known := (*_TEXTS, *_INTEGERS, *_NUMBERS, "clock")):
            near = difflib.get_close_matches(str(key), known, n=1) or known
            raise InputError(f"{where}: {key}: unknown field, expected {', '.join(near)}")
    fields: dict[str, Any] = {name: _field(document, name, where) for name in (*_TEXTS, *_INTEGERS, *_NUMBERS)}
    table = folder if (folder / TABLE_FILE).is_file() else None
    if "clock" in document:
        return Gpu(**fields, clock=_clock(document["clock"], f"{where}: clock"), table=table)
    gpu = Gpu(**fields, table=table)
    return gpu if table is not None else _with_transferred_clock(gpu)


def _with_transferred_clock(gpu: Gpu) -> Gpu:
    """The GPU with the law of the measured one: no law would be the more optimistic for not knowing. With its power
    limit and the clock of its peaks it is scaled (`ClockLaw.on`), else it stands as it is. A GPU with times of its own
    has none without stating it: they are taken as they stand."""
    origin = get_gpu(MEASURED_GPU)
    assert origin.clock is not None
    assert origin.boost_mhz is not None
    assert origin.power_w is not None
    law = origin.clock
    if gpu.boost_mhz is not None and gpu.power_w is not None:
        watts = (gpu.power_w / gpu.peak_bf16_flops) / (origin.power_w / origin.peak_bf16_flops)
        law = law.on(clocks=gpu.boost_mhz / origin.boost_mhz, watts=watts)
    return replace(gpu, clock=law, clock_as=MEASURED_GPU)


def _clock(found: object, where: str) -> ClockLaw:
    names = tuple(name for name in ClockLaw.__dataclass_fields__ if name != "settled")
    if not isinstance(found, dict) or set(found) - {"settled"} != set(names):
        raise InputError(f"{where}: found {quoted(found)}, expected the fields {', '.join(names)}, perhaps settled")
    rates: dict[str, Any] = {name: float(_number(found[name])) for name in names}
    law = ClockLaw(**rates)
    has_rates = 1 <= law.heavy_mhz <= law.light_mhz <= 1e6 and 1 <= law.reference_mhz <= 1e6
    if not (has_rates and 0 <= law.light_share < law.heavy_share <= 1):
        raise InputError(f"{where}: found {quoted(found)}, expected rates above 0 that fall as the share rises")
    if "settled" not in found:
        return law
    settled, own = found["settled"], names[1:]
    if not isinstance(settled, dict) or set(settled) != set(own):
        raise InputError(f"{where}.settled: found {quoted(settled)}, expected the fields {', '.join(own)}")
    return replace(law, settled=_clock({names[0]: law.reference_mhz, **settled}, f"{where}.settled"))


def _field(document: Mapping[str, object], name: str, where: str) -> object:
    value = document.get(name)
    if value is None and name in _OPTIONAL:
        return None
    if name in _TEXTS:
        if isinstance(value, str) and value:
            return value
        expected = "text"
    else:
        number, (least, most) = _number(value), _LIMITS[name]
        if least <= number <= most and (name in _NUMBERS or number == int(number)):
            return number if name in _NUMBERS else int(number)
        expected = f"a {'' if name in _NUMBERS else 'whole '}number, {least:g} to {most:g}"
    raise InputError(f"{where}: {name}: found {'nothing' if value is None else quoted(value)}, expected {expected}")


def _number(value: object) -> float:
    """A number; NaN where it is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")
