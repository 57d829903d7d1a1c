"""Points of a profile: one operation on one shape each, and the models and operator lists they come from.

Points carry the columns of ``measurements/table.py`` and a few more, so that a measured row is a point with times.
Lengths that differ within a batch are kept exactly, not as a mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeVar

from aicb.model.architecture import Attention, Model
from aicb.model.precision import KvDtype, WeightDtype

SHAPE_COLUMNS = (
    "m",
    "n",
    "k",
    "groups",
    "active_groups",
    "rows",
    "max_rows",
    "experts_per_token",
    "batch",
    "q_len",
    "kv_len",
    "heads",
    "kv_heads",
    "d_qk",
    "d_v",
    "max_m",
    "expected_m",
    "page_tokens",
)
"""Integer columns of a point. The last three are not in a table: rows allotted to each expert in the masked
layout, the host's hint of rows per expert, and tokens per KV page."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement to make. Points of equal shapes are equal, whatever model they come from."""

    op: str
    """Operation, in the words of ``aicb/measurements/table.py``."""
    dtype: str
    shape: tuple[tuple[str, int], ...]
    """(column, value), in the order of ``SHAPE_COLUMNS``."""
    lengths: tuple[int, ...] = ()
    """Attention: KV length of each sequence. Grouped GEMM: rows of each local expert."""
    queries: tuple[int, ...] = ()
    """Attention: new tokens of each sequence."""
    distribution: str = ""
    tag: str = field(default="", compare=False)
    """Model and operator that the shape comes from."""
    priority: int = field(default=0, compare=False)
    """Order of measurement: smaller first."""

    def __getitem__(self, column: str) -> int:
        return dict(self.shape)[column]

    def get(self, column: str, default: int) -> int:
        """The value of a column the point may lack."""
        return dict(self.shape).get(column, default)

    @property
    def key(self) -> str:
        """Text that is equal for equal points only."""
        parts = [self.op, self.dtype, self.distribution, *(f"{name}={value}" for name, value in self.shape)]
        return "|".join([*parts, encode_lengths(self.lengths), encode_lengths(self.queries)])


def encode_lengths(values: Sequence[int]) -> str:
    """Runs of equal values as ``value*count``, joined by ``;``: (5, 5, 7) is ``5*2;7``."""
    runs = [(value, len(list(same))) for value, same in groupby(values)]
    return ";".join(f"{value}*{count}" if count > 1 else str(value) for value, count in runs)


def decode_lengths(text: str) -> tuple[int, ...]:
    """Inverse of `encode_lengths`; empty text is no values."""
    values: list[int] = []
    for part in text.split(";") if text else []:
        value, _, count = part.partition("*")
        values += [int(value)] * int(count or 1)
    return tuple(values)


def point(
    op: str,
    dtype: str,
    shape: Mapping[str, int],
    *,
    lengths: tuple[int, ...] = (),
    queries: tuple[int, ...] = (),
    distribution: str = "",
    tag: str = "",
    priority: int = 0,
) -> Point:
    """A point from columns in any order."""
    unknown = sorted(set(shape) - set(SHAPE_COLUMNS))
    assert not unknown, f"unknown columns {unknown}"
    ordered = tuple((name, int(shape[name])) for name in SHAPE_COLUMNS if name in shape)
    return Point(op, dtype, ordered, lengths, queries, distribution, tag, priority)


@dataclass(frozen=True, slots=True)
class ListedPlace:
    """The place of a kernel in an operator list: of which model, on how many ranks, for how many tokens."""

    model: Model
    operator: str
    tp: int
    tokens: int

    @property
    def tag(self) -> str:
        """`Point.tag` of its points."""
        return f"{self.model.name}/{self.operator}/tp{self.tp}"


AnyAttention = TypeVar("AnyAttention", bound=Attention)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptModel:
    """A model with the formats and partitions that a profile covers."""

    model: Model
    weights: tuple[WeightDtype, ...]
    kv: tuple[KvDtype, ...]
    tp: tuple[int, ...]
    """Tensor-parallel sizes; experts are sliced by all that divide them."""
    dividing_tp: tuple[int, ...]
    """Sizes in ``tp`` that divide the model."""
    ep: tuple[int, ...]
    max_tokens: int
    """Most tokens of an iteration."""
    most_counted_tokens: int
    """The largest token count of the sweep, at most ``max_tokens``."""
    max_kv_tokens: int

    def attentions(self, kind: type[AnyAttention]) -> Iterator[tuple[AnyAttention, KvDtype, int]]:
        """(attention, format of the cache, tensor-parallel size) of all attentions of a kind."""
        kinds = dict.fromkeys(layer.attention for layer in self.model.layers)
        for kv in self.kv:
            for tp in self.dividing_tp:
                for attention in kinds:
                    if isinstance(attention, kind):
                        yield attention, kv, tp

    def tag(self, tp: int) -> str:
        """`Point.tag` of its points."""
        return f"{self.model.name}/tp{tp}"
