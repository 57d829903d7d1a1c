"""Base class of kernels: a shape, its cost, and the source of its times.

A kernel is a frozen dataclass in a module of this package. It states its cost (``cost``: FLOPs and bytes, stated
nowhere else), how rows of a table describe it (``read``), how measured rows become times (``fit``), and the points that
a profile measures. `aicb.kernels.registry` finds the classes; nothing else lists them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from aicb.kernels.columns import Columns
from aicb.kernels.fitting.estimate import DecodeTimes, Estimate
from aicb.kernels.fitting.surface import Surface
from aicb.kernels.point import ListedPlace, Point, SweptModel
from aicb.measurements.clock import DENSE_PRODUCTS, PowerLoad
from aicb.measurements.gpu import Gpu
from aicb.measurements.timing import MeasuredTimes
from aicb.model.key_span import KeySpan
from aicb.model.precision import GemmDtype, KvDtype, Precision
from boundary.errors import InputError

Shape = tuple[float, ...]
CoreRole = Literal["prefill", "chunk", "decode"]


class KernelCost(NamedTuple):
    """FLOPs and bytes of one execution."""

    flops: float
    moved_bytes: float
    """Bytes read and written, each operand and result once."""
    cold_bytes: float
    """Part of ``moved_bytes`` that other layers have evicted from L2: weights, KV cache, state."""
    dtype: GemmDtype
    """Number format in which the tensor cores compute."""


class Kernel(ABC):
    """Kernel of an inference engine with its shape; immutable."""

    __slots__ = ()

    operations: ClassVar[tuple[str, ...]] = ()
    """Values of the column ``op`` in tables of measurements whose rows are of this kernel."""
    cold_operations: ClassVar[frozenset[str]] = frozenset()
    """Operations whose weights, cache or state are evicted between layers: profiled with rotating operand sets."""
    preferred_libraries: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """By operation: prefixes of library kernel names whose rows represent it in a table, best first."""
    core_role: ClassVar[CoreRole | None] = None
    """Kind of attention that the C++ core can price as a function of lengths; None: priced in Python."""
    stays_in_cache: ClassVar[bool] = False
    """Whether its operands, written just before, may be read from L2 instead of memory."""

    @abstractmethod
    def cost(self, precision: Precision) -> KernelCost:
        """FLOPs and bytes; ``precision`` gives the formats of KV cache and recurrent state."""

    @abstractmethod
    def describe(self) -> str:
        """Text of the shape, for tables on the command line."""

    @property
    def power_load(self) -> PowerLoad:
        """What it adds to the load that lowers the SM clock."""
        return DENSE_PRODUCTS

    def time_ratio(self, origin: Gpu, target: Gpu) -> float | None:
        """Time on ``target`` over that on ``origin``, where FLOPs and bytes do not tell it; None: they do."""
        del origin, target
        return None

    @classmethod
    @abstractmethod
    def read(cls, operation: str, row: Columns) -> Self:
        """Kernel that a row of a table describes.

        Raises:
            InputError: a column is missing or malformed.
        """

    @classmethod
    @abstractmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> KernelTimes[Self] | None:
        """Times of a variant from the measurements of one GPU; ``None`` where there are too few."""

    def variant(self, precision: Precision) -> Hashable:
        """Key that tells apart kernels of this class that are measured separately, such as the number format."""
        del precision
        return None

    @property
    def measured_as(self) -> tuple[str, str | None]:
        """(operation, number format) of the rows that price this kernel; operation "": always priced by transfer."""
        return "", None

    @classmethod
    def depends_on_lengths(cls) -> bool:
        """Whether the time depends on the KV length of each request, and not on sums alone."""
        return "kv_tokens" in cls.__dataclass_fields__  # type: ignore[attr-defined]

    def weight_bytes(self, elements: int) -> int:
        """Bytes of memory that ``elements`` resident parameters of this kernel take."""
        return 2 * elements

    def tensor_bytes(self, precision: Precision) -> int:
        """Bytes of inputs and outputs in memory while it runs, without weights; 0 where engines reuse or chunk them."""
        del precision
        return 0

    def check(self) -> None:
        """Raises ``InputError`` where a dimension is not positive or lengths contradict each other."""
        for name in self.__dataclass_fields__:  # type: ignore[attr-defined]
            value = getattr(self, name)
            if name in NOT_DIMENSIONS or not isinstance(value, int | float):
                continue
            if value < 1:
                raise InputError(f"{type(self).__name__}.{name}: found {value}, expected at least 1")

    @classmethod
    def profiled_operations(cls) -> tuple[str, ...]:
        """Operations that the profiler has libraries for."""
        return cls.operations

    def listed_points(self, place: ListedPlace) -> Iterator[Point]:
        """Points that a profile measures for this kernel of an operator list."""
        del place
        yield from ()

    @classmethod
    def swept_points(cls, swept: SweptModel) -> Iterator[Point]:
        """Points that a profile measures for a model, besides those of its operator lists."""
        del swept
        yield from ()


NOT_DIMENSIONS = frozenset(
    {
        "rows",
        "moved_bytes",
        "active_groups",
        "largest_group_rows",
        "has_bias",
        "is_shared",
        "has_activation",
        "gathering",
        "split_tokens",
        "is_stand_in",
    }
)
"""Fields that may be below 1."""

AnyKernel = TypeVar("AnyKernel", bound=Kernel, contravariant=True)


class KernelTimes(ABC, Generic[AnyKernel]):
    """Times of one variant of a kernel on one GPU."""

    is_bounded: ClassVar[bool] = False
    """Whether its times already respect the roofline as a lower bound."""
    has_stand_ins: ClassVar[bool] = False
    """Whether a shape far from its own measurements may take those of another surface."""

    @abstractmethod
    def price(self, kernel: AnyKernel) -> Estimate:
        """Time of one execution."""

    def place(self, kernel: AnyKernel) -> tuple[Surface, Shape] | None:
        """Surface that prices the kernel, and the kernel's shape on it; ``None`` where it is priced in another way."""
        del kernel
        return None

    def parts(self, kernel: AnyKernel) -> tuple[Surface, list[Shape]] | None:
        """Surface, and shapes on it whose times add up to the kernel's, for estimators that learn from its points."""
        del kernel
        return None


class SurfaceTimes(KernelTimes[AnyKernel]):
    """Times of a kernel that are a surface over its shapes."""

    def __init__(self, surface: Surface):
        self.surface = surface

    @abstractmethod
    def shape_of(self, kernel: AnyKernel) -> Shape:
        """Shape on the surface: site and axis."""

    def price(self, kernel: AnyKernel) -> Estimate:
        return self.surface.price(*self.shape_of(kernel))

    def place(self, kernel: AnyKernel) -> tuple[Surface, Shape] | None:
        return self.surface, self.shape_of(kernel)


class CacheKernel(Kernel):
    """Kernel that reads the KV cache of decodes: one query token per request; more tokens count as more heads."""

    __slots__ = ()

    kv_tokens: NDArray[np.int64]
    heads: int
    kv_dtype: KvDtype | None
    """Format of the cache; ``None``: that of the model's precision."""
    span: KeySpan | None = None
    """What has made ``kv_tokens`` from the lengths of requests; ``None``: they are those lengths."""

    def variant(self, precision: Precision) -> KvDtype:
        return self.kv_dtype or precision.kv

    def tensor_bytes(self, precision: Precision) -> int:
        return int(self.cost(precision).moved_bytes)

    def over(self, kv_tokens: NDArray[np.int64]) -> Self:
        """The kernel of this geometry over other lengths."""
        return replace(self, kv_tokens=kv_tokens)  # type: ignore[type-var]

    def with_queries(self, queries: int) -> Self:
        """The kernel with ``queries`` query tokens per request, which count as more heads."""
        return replace(self, heads=self.heads * queries)  # type: ignore[type-var]

    def of_one_token(self) -> Self:
        """The kernel of this geometry over one KV token."""
        return self.over(np.ones(1, dtype=np.int64))


AnyCacheKernel = TypeVar("AnyCacheKernel", bound=CacheKernel, contravariant=True)


class CacheTimes(KernelTimes[AnyCacheKernel]):
    """Times of a kernel that reads the cache, over consecutive iterations."""

    is_bounded: ClassVar[bool] = True

    @abstractmethod
    def decode_times(self, kernel: AnyCacheKernel, batch: int) -> DecodeTimes:
        """Time for ``batch`` sequences; the lengths in ``kernel`` do not matter."""

    def price(self, kernel: AnyCacheKernel) -> Estimate:
        times = self.decode_times(kernel, len(kernel.kv_tokens))
        steps, is_far = times(kernel.kv_tokens, 1)
        return Estimate(float(steps[0]), bool(is_far), times.source, lambda: times.error)

    def site(self, kernel: AnyCacheKernel, batch: int) -> tuple[Surface, Shape] | None:
        """A surface over KV lengths and the site of so many sequences there; ``None`` where there is none."""
        del kernel, batch
        return None
