"""Tiles in which kernels of vLLM and SGLang compute gathered experts: by site and tokens.

vLLM 0.24.0 (``fused_moe.py``) and SGLang 0.5.17 (``triton_utils/fused_moe_triton_config.py``) take the entry of a
site's tuned file whose tokens are nearest, and a rule of thumb where they ship no file (`aicb.kernels.tuned_experts`).
Measurements have what they were launched with: of a measured site those entries are known that were measured, and
another site is taken to have those of the nearest one of its kind.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Self

import numpy as np

from aicb.kernels.expert_points import experts_of_all_ranks
from aicb.kernels.fitting.kriging import Floats
from aicb.kernels.tuned_experts import has_sglang_tiles, has_tuned_tiles
from aicb.measurements.table import KernelRow
from aicb.model.precision import GemmDtype

Site = tuple[int, int, int]
"""Experts of a rank, columns, inner size."""
Tile = tuple[int, int]
"""Rows, columns."""

TUNED_TOKENS = frozenset({1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096})
"""For which the files have an entry (``fused_moe/configs/*.json``, all but those with 8,192 besides; SGLang's are made
by the same script)."""
Thumb = Sequence[tuple[float, Tile]]
"""Up to how many tokens which tile."""
VLLM_THUMB: Mapping[GemmDtype, Thumb] = {
    "bf16": ((32, (16, 64)), (64, (32, 64)), (96, (32, 128)), (512, (64, 128)), (inf, (128, 128))),
    "fp8": ((64, (16, 128)), (inf, (64, 128))),
}
"""Without tuned ones (``get_default_config``); fp8 in blocks."""
COMMON_TILE: Tile = (64, 128)
"""Of kernels whose tiles are not known."""


def sglang_thumb(dtype: GemmDtype, experts: int) -> Thumb:
    """SGLang's without tuned ones, of so many experts of a rank (``get_default_config``); fp8 in blocks."""
    return ((experts, (16, 32)), (inf, (64, 64))) if dtype == "bf16" else ((inf, (64, 128)),)


@dataclass(frozen=True, slots=True)
class TileRules:
    """How an engine chooses tiles."""

    is_tuned: Callable[[str, GemmDtype, int, int, int], bool]
    """Whether it ships a file: GPU, format, experts of a rank, columns, inner size."""
    thumb: Callable[[GemmDtype, int], Thumb]
    """Without one: format, experts of a rank."""


VLLM = TileRules(has_tuned_tiles, lambda dtype, _: VLLM_THUMB[dtype])
SGLANG = TileRules(has_sglang_tiles, sglang_thumb)


@dataclass(frozen=True, slots=True)
class SiteTiles:
    """Tiles of one site."""

    per_token: float
    """Rows of the rank's experts per token of all ranks."""
    is_tuned: bool
    up_to: tuple[float, ...]
    """Tokens, ascending; the last is infinite."""
    tiles: tuple[Tile, ...]

    @classmethod
    def of(cls, rows: Sequence[KernelRow], dtype: GemmDtype, rules: TileRules) -> Self:
        """``rows``: measurements of the site with their settings."""
        last = max(rows, key=lambda row: row["batch"])
        pairs = last.shape.get("m", last["rows"])
        per_token = pairs / last["batch"] * last["groups"] / experts_of_all_ranks(last)
        settings = {row["batch"]: json.loads(row.settings) for row in rows}
        if not settings[last["batch"]]["is_tuned"]:
            up_to, tiles = zip(*rules.thumb(dtype, last["groups"]), strict=True)
            return cls(per_token, False, up_to, tiles)
        entries = sorted(TUNED_TOKENS & settings.keys()) or sorted(settings)
        halfway = [(low + high) / 2 for low, high in pairwise(entries)]
        chosen = (settings[tokens] for tokens in entries)
        tiles = tuple((each["block_size_m"], each["block_size_n"]) for each in chosen)
        return cls(per_token, True, (*halfway, inf), tiles)


class EngineTiles:
    """Tiles of all sites of a GPU. Without measurements each is `COMMON_TILE`."""

    def __init__(self, gpu: str, dtype: GemmDtype, rows: Sequence[KernelRow], rules: TileRules = VLLM):
        self._gpu, self._dtype, self._rules = gpu, dtype, rules
        measured: defaultdict[Site, list[KernelRow]] = defaultdict(list)
        for row in rows:
            if row.settings and "batch" in row.shape:
                measured[row["groups"], row["n"], row["k"]].append(row)
        self._measured = {site: SiteTiles.of(found, dtype, rules) for site, found in measured.items()}
        self._known = dict(self._measured)

    def at_site(self, site: Site) -> SiteTiles:
        """Of a site; of one that was not measured those of the nearest one for which there are tuned tiles too, or
        none."""
        if site not in self._known:
            self._known[site] = self._nearest(site)
        return self._known[site]

    def _nearest(self, site: Site) -> SiteTiles:
        if not self._measured:
            return SiteTiles(1.0, False, (inf,), (COMMON_TILE,))
        is_tuned, place = self._rules.is_tuned(self._gpu, self._dtype, *site), np.log2(site)

        def distance(other: Site) -> tuple[bool, float]:
            return self._measured[other].is_tuned != is_tuned, float(np.hypot.reduce(np.log2(other) - place))

        return self._measured[min(self._measured, key=distance)]

    def of(self, shapes: Floats) -> Floats:
        """[shapes, 3] rows and columns of the tile, and whether it is tuned; ``shapes``: (experts, active experts, n,
        k, tokens, rows per active expert)."""
        found = []
        for groups, n, k, tokens in shapes[:, [0, 2, 3, 4]].tolist():
            known = self.at_site((round(groups), round(n), round(k)))
            found.append((*known.tiles[bisect_left(known.up_to, tokens)], known.is_tuned))
        return np.array(found, dtype=np.float64)
