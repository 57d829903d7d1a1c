#!/usr/bin/env python3
"""Fits what one call of prompts and decodes takes beyond them alone (`aicb.kernels.mixed_attention`).

    python scripts/fit_mixed_attention.py

Least absolute deviations of the logarithms over all measured calls, whose prompts and decodes alone are priced by the
H200's table; then over all geometries but one, which is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from aicb.estimators.interpolation import InterpolationEstimator
from aicb.kernels.mixed_attention import (
    CALL_TIMES,
    CAPTURED_TOKENS,
    DECODE_TILES,
    CallTimes,
    DecodeTile,
    MixedAttention,
    mixed_call,
)
from aicb.measurements.gpu import get_gpu
from aicb.model.precision import KvDtype, Precision
from scripts.measured_attention import MIXED, MeasuredCall, measured_calls

GPU = get_gpu("h200")
KINDS = tuple(DECODE_TILES)
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Parts:
    """A measured call with its parts alone."""

    call: MeasuredCall
    kernel: MixedAttention
    prompts_us: float
    decodes_us: float
    """0: there are none."""

    @property
    def has_decodes(self) -> bool:
        return bool(self.kernel.is_decode.any())


def parts() -> list[Parts]:
    """All measured calls."""
    formats: tuple[KvDtype, ...] = ("bf16", "fp8")
    estimators = {kv: InterpolationEstimator(GPU, Precision(kv=kv)) for kv in formats}
    found = []
    for call in measured_calls(MIXED, GPU):
        heads = (call.heads, call.kv_heads, call.head_dim)
        kernel = MixedAttention(call.new_tokens, call.kv_tokens, *heads, call.dtype)
        estimator = estimators[call.dtype]
        decodes_us = estimator.price(kernel.decodes).time_us if kernel.is_decode.any() else 0.0
        found.append(Parts(call, kernel, estimator.price(kernel.prompts).time_us, decodes_us))
    return found


def chosen() -> Values:
    """The constants of `aicb.kernels.mixed_attention`: the four, then start and key [ns] of each kind of heads."""
    tiles = [value for tile in DECODE_TILES.values() for value in (tile.start_us, 1e3 * tile.key_us)]
    return np.array([*CALL_TIMES[:3], 1e3 * CALL_TIMES.prompt_split_us, *tiles])


def errors(listed: Sequence[Parts], values: Values) -> Values:
    """[calls] predicted over measured, less 1."""
    return np.array([_predicted_us(each, np.abs(values)) / each.call.time_us - 1.0 for each in listed])


def one_after_another(listed: Sequence[Parts]) -> Values:
    """[calls] the sum of the parts over the measured time, less 1."""
    return np.array([(each.prompts_us + each.decodes_us) / each.call.time_us - 1.0 for each in listed])


def _predicted_us(each: Parts, values: Values) -> float:
    times = CallTimes(*values[:3], values[3] / 1e3)
    pairs = values[4:].reshape(-1, 2)
    tiles = {kind: DecodeTile(start_us, key_ns / 1e3) for kind, (start_us, key_ns) in zip(KINDS, pairs, strict=True)}
    mixed, is_decode = mixed_call(each.kernel.prompts, GPU, CAPTURED_TOKENS, times, tiles), each.kernel.is_decode
    new, kv = each.call.new_tokens[~is_decode], each.call.kv_tokens[~is_decode]
    return mixed.time_us(each.prompts_us, new, kv, each.decodes_us, each.call.kv_tokens[is_decode])


def fitted(listed: Sequence[Parts]) -> Values:
    """Constants in the order of `chosen`, from there on."""

    def deviation(values: Values) -> float:
        return float(np.abs(np.log1p(errors(listed, values))).mean())

    near = minimize(deviation, chosen(), method="Nelder-Mead", options={"maxfev": 250, "adaptive": True})
    return np.asarray(np.abs(near.x))


def _report(name: str, found: Values) -> None:
    size = np.abs(found)
    p90 = np.quantile(size, 0.9)
    print(f"{name:48} {len(found):4d}: {size.mean():5.1%} mean, {p90:5.1%} p90, {np.median(found):+.1%} signed")


def main() -> None:
    listed = parts()
    print("floor, decode floor, split, prompt split [ns]; start and key [ns] of", *KINDS)
    print(np.round(fitted(listed), 2).tolist())
    calls, prompts = ([each for each in listed if each.has_decodes is has] for has in (True, False))
    _report("calls, one after another", one_after_another(calls))
    _report("calls", errors(calls, chosen()))
    for least, most in pairwise((0, CAPTURED_TOKENS, 10**9)):
        some = [each for each in calls if least < each.call.new_tokens.sum() <= most]
        _report(f"calls of {least + 1} to {most} tokens, one after another", one_after_another(some))
        _report(f"calls of {least + 1} to {most} tokens", errors(some, chosen()))
    _report("prompts alone, as if not to be divided", one_after_another(prompts))
    _report("prompts alone", errors(prompts, chosen()))
    for geometry in sorted({each.call.geometry for each in listed}):
        out = [each for each in calls if each.call.geometry == geometry]
        rest = [each for each in listed if each.call.geometry != geometry]
        _report(f"{geometry} left out", errors(out, fitted(rest)))


if __name__ == "__main__":
    main()
