"""Expert load: how unevenly tokens choose experts.

Dispatch and combine are barriers, so a layer lasts as long as its slowest rank: the one with the most rows. Layers draw
independently, so an iteration of many layers costs the *mean over draws of the maximum over ranks*, which
``LoadProfile`` gives as a function of the group's tokens.

Kinds of load, by the names that `parse_expert_load` reads:

    balanced      every expert gets T·k/E rows
    balanced:B    the slowest rank of every layer gets 1/B times the mean rows of a rank, the others share the rest
    uniform       every token picks k distinct experts, all equally likely
    zipf:S        likewise with popularity ∝ rank^−S, experts in random order per draw
    power_law:A   rows per expert drawn from a truncated power law (aiconfigurator)
    recorded:F    likewise with the popularities of a file, one row per layer

Assumes that tokens choose independently of each other and of earlier layers. Group-limited routing is ignored. How
popularity changes in time is in ``aicb.experts.drift``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from boundary.json_text import parse_json
from boundary.text_files import read_text

MOST_EXPONENT = 40.0
"""Of popularity; at 40 the first of the experts has all of it but 10⁻¹² parts."""
LEAST_BALANCEDNESS = 1e-3
"""Where one of a thousand ranks has all rows."""
MOST_POPULARITY = 1e18
"""On whatever scale it is recorded."""
SAMPLED_TOKENS = 1024
"""Tokens sampled one by one per draw; deviations of larger batches follow from them by the central limit theorem."""


@dataclass(frozen=True, slots=True)
class BalancedLoad:
    """Every expert gets the same rows, the least any engine can reach; or, with a balancedness, as engines log it, one
    rank has more than the others.

    The balancedness is the mean over the maximum of the rows of ranks (SGLang:
    ``--enable-expert-distribution-metrics``; vLLM: ``log_balancedness``). What chance does is in it.

    Raises:
        InputError: a balancedness outside 0 … 1.
    """

    balancedness: float = 1.0

    def __post_init__(self) -> None:
        if not LEAST_BALANCEDNESS <= self.balancedness <= 1.0:
            raise InputError(
                f"BalancedLoad.balancedness: found {self.balancedness}, expected {LEAST_BALANCEDNESS:g} to 1"
            )


@dataclass(frozen=True, slots=True)
class UniformLoad:
    """Every token picks k distinct experts, all equally likely (dummy weights, or a perfectly trained balance)."""


@dataclass(frozen=True, slots=True)
class ZipfLoad:
    """Popularity ∝ rank^−exponent, experts in random order.

    Raises:
        InputError: a negative exponent.
    """

    exponent: float

    def __post_init__(self) -> None:
        _check_exponent("ZipfLoad.exponent", self.exponent)


@dataclass(frozen=True, slots=True)
class PowerLawLoad:
    """Rows per expert from a truncated power law, as aiconfigurator draws them for its tables (095f58a).

    ``x_e = ((xmax^(1−α) − xmin^(1−α))·u + xmin^(1−α))^(1/(1−α))`` with u uniform; xmin = 1 and xmax = 0.8·tokens where
    tokens·k > E, else 0.01 and 2. Scaled to a sum of tokens·k, rounded, clamped to the tokens; what is missing goes one
    by one, round robin over ranks, to the expert of the rank with the fewest rows.

    Raises:
        InputError: a negative α.
    """

    alpha: float

    def __post_init__(self) -> None:
        _check_exponent("PowerLawLoad.alpha", self.alpha)


@dataclass(frozen=True, slots=True)
class RecordedLoad:
    """Popularities of experts recorded from an engine; each draw takes the layer that follows.

    Raises:
        InputError: no layers, unequal lengths, a negative or no positive popularity.
    """

    popularity: tuple[tuple[float, ...], ...]
    """[layers][experts] any scale"""
    source: str = "RecordedLoad"

    def __post_init__(self) -> None:
        widths = {len(layer) for layer in self.popularity}
        if len(widths) != 1 or 0 in widths:
            found = sorted(widths)
            raise InputError(f"{self.source}: popularity: found rows of {found} experts, expected equal rows")
        for number, layer in enumerate(self.popularity, start=1):
            if not all(0.0 <= value <= MOST_POPULARITY for value in layer) or not any(layer):
                raise InputError(
                    f"{self.source}: popularity: found a negative or no positive value in row {number}, expected loads"
                )


ExpertLoad = BalancedLoad | UniformLoad | ZipfLoad | PowerLawLoad | RecordedLoad


def parse_expert_load(text: str) -> ExpertLoad:
    """The load that ``balanced[:B]``, ``uniform``, ``zipf:S``, ``power_law:A`` or ``recorded:FILE`` names.

    Raises:
        InputError: none of these, or a bad number or file.
    """
    kind, _, argument = text.partition(":")
    match kind:
        case "balanced" if not argument:
            return BalancedLoad()
        case "balanced":
            return BalancedLoad(_number(text, argument))
        case "uniform" if not argument:
            return UniformLoad()
        case "zipf":
            return ZipfLoad(_number(text, argument))
        case "power_law":
            return PowerLawLoad(_number(text, argument))
        case "recorded":
            return read_expert_load(Path(argument))
    raise InputError(
        f"expert_load: found {text!r}, expected balanced, balanced:B, uniform, zipf:S, power_law:A or recorded:FILE"
    )


def read_expert_load(path: Path) -> RecordedLoad:
    """Popularities from a file: JSON (``[experts]`` or ``[layers][experts]``), or comma-separated lines, one per layer.

    Raises:
        InputError: the file cannot be read or holds something else.
    """
    text = read_text(path, "expert loads")
    if path.suffix == ".json":
        rows = parse_json(text, str(path), "expert loads")
        rows = rows if isinstance(rows, list) and rows and isinstance(rows[0], list) else [rows]
    else:
        rows = [line.split(",") for line in text.splitlines() if line.strip()]
    try:
        return RecordedLoad(tuple(tuple(float(cell) for cell in row) for row in rows), str(path))
    except InputError:
        raise
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"{path}: popularity: expected numbers, one row per layer") from None


def _number(text: str, argument: str) -> float:
    try:
        return float(argument)
    except ValueError:
        raise InputError(f"expert_load: found {text!r}, expected a number after the colon") from None


def _check_exponent(name: str, value: float) -> None:
    if not 0.0 <= value <= MOST_EXPONENT:
        raise InputError(f"{name}: found {value}, expected 0 to {MOST_EXPONENT:g}")


class ExpertDraw(Protocol):
    """One layer's choice of experts."""

    @property
    def popularity(self) -> NDArray[np.float64]:
        """[experts] the larger, the more tokens choose the expert."""
        ...

    def rows(self, tokens: int) -> NDArray[np.int64]:
        """[experts] rows of each expert when the group processes ``tokens`` tokens."""
        ...

    def expected_load(self, tokens: int) -> NDArray[np.float64]:
        """[experts] what a load balancer expects of these experts, in rows."""
        ...


class RoutedDraw:
    """Tokens pick k distinct experts one after another, with probability proportional to popularity.

    Up to ``SAMPLED_TOKENS`` tokens are sampled one by one (Plackett–Luce, by exponential races). Beyond, rows are
    ``T·π + √(T / sampled)·(sampled rows − sampled·π)``: exact in mean and covariance, normal in shape. π solves
    ``π_e = 1 − exp(−λ·p_e)``, Σπ = k (Rosén 1997, asymptotic theory for order sampling): k/E for equal popularities.
    """

    def __init__(self, popularity: NDArray[np.float64], experts_per_token: int, rng: np.random.Generator):
        self.popularity = popularity / popularity.sum()
        self._inclusion = _inclusion(self.popularity, experts_per_token)
        races = rng.standard_exponential((SAMPLED_TOKENS, len(popularity)), dtype=np.float32)
        with np.errstate(
            divide="ignore", invalid="ignore"
        ):  # experts without popularity never win: ∞, or NaN for 0 / 0
            races /= self.popularity.astype(np.float32)
        self._chosen = np.argpartition(races, experts_per_token - 1, axis=1)[:, :experts_per_token]

    def rows(self, tokens: int) -> NDArray[np.int64]:
        counts = np.bincount(self._chosen[:tokens].ravel(), minlength=len(self.popularity))
        if tokens <= SAMPLED_TOKENS:
            return counts
        deviation = counts - SAMPLED_TOKENS * self._inclusion
        scaled = tokens * self._inclusion + np.sqrt(tokens / SAMPLED_TOKENS) * deviation
        return np.asarray(np.rint(np.clip(scaled, 0, tokens)).astype(np.int64))

    def expected_load(self, tokens: int) -> NDArray[np.float64]:
        return tokens * self._inclusion


def _inclusion(popularity: NDArray[np.float64], chosen: int) -> NDArray[np.float64]:
    """[experts] probability of being among the ``chosen`` of a token."""
    low, high = 0.0, 1.0
    while (-np.expm1(-high * popularity)).sum() < chosen and high < 1e18:
        high *= 2.0
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (middle, high) if (-np.expm1(-middle * popularity)).sum() < chosen else (low, middle)
    return np.asarray(-np.expm1(-high * popularity))


class PowerLawDraw:
    """One sample of ``PowerLawLoad``; batches of different size share their random numbers."""

    def __init__(
        self,
        alpha: float,
        shape: tuple[int, int, int],
        rng: np.random.Generator,
        order: NDArray[np.int64] | None = None,
    ):
        """``shape``: experts, experts per token, ranks. ``order`` as in `draw_experts`."""
        self._alpha, (experts, self._chosen, ranks) = alpha, shape
        self._ranks = ranks if experts % ranks == 0 else 1
        uniform = rng.random(experts)
        self.popularity = uniform if order is None else uniform[order]

    def rows(self, tokens: int) -> NDArray[np.int64]:
        target = tokens * self._chosen
        low, high = (1.0, 0.8 * tokens) if target > len(self.popularity) else (0.01, 2.0)
        shares = _power_law(self.popularity, self._alpha, low, high)
        counts = np.minimum(np.rint(shares * (target / shares.sum())), tokens).astype(np.int64)
        return _spread(counts.reshape(self._ranks, -1), target - int(counts.sum()), tokens).ravel()

    def expected_load(self, tokens: int) -> NDArray[np.float64]:
        return self.rows(tokens).astype(np.float64)


def _power_law(uniform: NDArray[np.float64], alpha: float, low: float, high: float) -> NDArray[np.float64]:
    """Inverse of the distribution function of a density ∝ x^−α on [low, high]."""
    if alpha == 1.0:
        return np.asarray(low * (high / low) ** uniform)
    power = 1.0 - alpha
    return np.asarray(((high**power - low**power) * uniform + low**power) ** (1.0 / power))


def _spread(rows: NDArray[np.int64], missing: int, most: int) -> NDArray[np.int64]:
    """[ranks, experts] ``rows`` with ``missing`` more (or fewer, where negative), one by one, round robin over ranks.

    A rank gives to its expert with the fewest rows, at most ``most``, and takes from the one with the most, at least
    0. A rank that cannot is passed over.
    """
    if missing < 0:
        return most - _spread(most - rows, -missing, most)
    experts = rows.shape[1]
    while missing:
        room = np.flatnonzero((most * experts - rows.sum(axis=1)) > 0)
        share = np.full(len(room), missing // len(room))
        share[: missing % len(room)] += 1
        share = np.minimum(share, most * experts - rows[room].sum(axis=1))
        rows = rows.copy()
        rows[room] = _raise_smallest(rows[room], share)
        missing -= int(share.sum())
    return rows


def _raise_smallest(rows: NDArray[np.int64], extra: NDArray[np.int64]) -> NDArray[np.int64]:
    """[ranks, experts] with ``extra[r]`` added to rank r, always to its smallest expert: water filling in integers."""
    order = np.argsort(rows, axis=1, kind="stable")
    ascending = np.take_along_axis(rows, order, axis=1)
    count = np.arange(1, rows.shape[1] + 1)
    filled = np.cumsum(ascending, axis=1)
    reached = (count * ascending - filled <= extra[:, None]).sum(axis=1)
    volume = np.take_along_axis(filled, reached[:, None] - 1, axis=1)[:, 0] + extra
    level, rest = np.divmod(volume, reached)
    position = count[None, :] - 1
    wet = position < reached[:, None]
    level_of = level[:, None] + (position < rest[:, None])
    result = np.empty_like(rows)
    np.put_along_axis(result, order, np.where(wet, level_of, ascending), axis=1)
    return result


RoutedLoad = UniformLoad | ZipfLoad | RecordedLoad


def draw_experts(
    load: RoutedLoad | PowerLawLoad,
    shape: tuple[int, int, int],
    draw: int,
    seed: int,
    order: NDArray[np.int64] | None = None,
) -> ExpertDraw:
    """Draw number ``draw`` of a load; ``shape`` is experts, experts per token, ranks of the group.

    With ``order`` [experts] the expert e has the popularity that ``order[e]`` has without.

    Raises:
        InputError: recorded loads of another number of experts.
    """
    if isinstance(load, PowerLawLoad):
        return PowerLawDraw(load.alpha, shape, np.random.default_rng([seed, draw]), order)
    if order is None:
        return _draw_routed(load, shape[:2], draw, seed)
    rng = np.random.default_rng([seed, draw])
    return RoutedDraw(_popularity(load, shape[:2], draw, rng)[order], shape[1], rng)


@lru_cache(maxsize=256)  # pools of one model share their draws, whatever their ranks: 64 kB and 2 ms each
def _draw_routed(load: RoutedLoad, shape: tuple[int, int], draw: int, seed: int) -> RoutedDraw:
    """``shape``: experts, experts per token."""
    rng = np.random.default_rng([seed, draw])
    return RoutedDraw(_popularity(load, shape, draw, rng), shape[1], rng)


def _popularity(load: RoutedLoad, shape: tuple[int, int], draw: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """[experts] of a layer; ``shape``: experts, experts per token."""
    experts, chosen = shape
    match load:
        case UniformLoad():
            return np.ones(experts)
        case ZipfLoad(exponent=exponent):
            ranked = np.arange(1, experts + 1, dtype=np.float64) ** -exponent
            return rng.permutation(ranked)
        case RecordedLoad(popularity=layers, source=source):
            recorded = np.array(layers[draw % len(layers)])
            if len(recorded) != experts:
                raise InputError(f"{source}: popularity: found {len(recorded)} experts, expected {experts}")
            if np.count_nonzero(recorded) < chosen:
                raise InputError(f"{source}: popularity: found fewer than {chosen} experts in use, expected at least k")
            return recorded
