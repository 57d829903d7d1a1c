"""Types of the C++ core (aicb/core/bindings.cpp)."""

from collections.abc import Sequence
from enum import Enum
from typing import overload

import numpy as np
from numpy.typing import NDArray

class SplitKv:
    """How a kernel's volume depends on the lengths: Σ(⌈S / block⌉ + overhead) / parts + overhead blocks."""

    def __init__(
        self,
        *,
        block_tokens: int,
        overhead_blocks: int,
        parts: int,
        unequal_us: float,
        unequal_share: float,
        unequal_from_us: float,
        equal_spread: float,
        longest_us: float = 0.0,
        longest_token_us: float = 0.0,
    ) -> None:
        """The penalty of unequal lengths is ``unequal_share`` of the time beyond ``unequal_from_us``, at most
        ``unequal_us``; ``equal_spread``: the relative spread that costs it in full. From that on a batch takes at least
        ``longest_us``, and ``longest_token_us`` for each KV token of its longest request. ``block_tokens`` is at most
        160."""

class KvCost:
    """What a kernel that reads the cache asks of a GPU, at some rates, as lines in the KV tokens of its batch."""

    def __init__(self, *, tensor_us: float, memory_us: float, own_memory_us: float) -> None:
        """Per KV token its FLOPs and its bytes; of the batch, queries and results."""

    def least_us(self, kv_tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        """The longer of FLOPs and bytes: a roofline."""

class DecodeTransfer:
    """Scaling of a measured time to another GPU by costs at the rates that both reach; ``bound``: at nominal rates."""

    def __init__(
        self, *, origin_latency_us: float, target_latency_us: float, origin: KvCost, target: KvCost, bound: KvCost
    ) -> None: ...

class VolumeFunction:
    """Piecewise-linear time [µs] of a volume; the last slope continues to the right."""

    def __init__(self, volume: NDArray[np.float64], time_us: NDArray[np.float64], slope: NDArray[np.float64]) -> None:
        """[knots] each; ``volume`` rises, ``slope`` is that right of each knot."""

    def __call__(self, volume: NDArray[np.float64]) -> NDArray[np.float64]:
        """[volumes] µs, the same bits as one by one."""

class DecodeTimes:
    """Decode attention of one geometry and batch size: a piecewise-linear function of the KV volume."""

    def __init__(
        self,
        time: VolumeFunction,
        *,
        volume_of: SplitKv,
        bound: KvCost,
        volume_range: tuple[float, float],
        is_estimate: bool,
    ) -> None:
        """``volume_of``: the volume that lengths make; ``bound``: roofline; volumes outside
        ``volume_range`` are estimates."""

    def transferred(self, transfer: DecodeTransfer) -> DecodeTimes:
        """The same on another GPU."""

    def over(self, kv_tokens: NDArray[np.int64], steps: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """[batches, steps] µs and [batches] whether they are estimates, of ``kv_tokens`` [batches, requests]; in step j
        every request attends to j more tokens."""

    def of_equal(self, kv_tokens: NDArray[np.int64], requests: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """[batches] µs and whether they are estimates, of ``requests`` equal requests each: the bits of ``over``."""

class KeySpan:
    """Keys that a query sees where it does not see all past ones, see aicb/model/key_span.py."""

    def __init__(self, tokens: int, *, is_chunked: bool) -> None: ...
    def seen(self, kv_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """[…] keys that the last of ``kv_tokens`` tokens sees."""

    def chunk_requests(
        self, new_tokens: NDArray[np.int64], kv_tokens: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """New and KV tokens of the requests of their own that the chunks of these are."""

class DecodeKernel:
    """A kernel that reads the KV cache of decodes."""

    def __init__(
        self,
        times: DecodeTimes,
        one_query: DecodeTimes | None,
        *,
        count: int,
        name: int,
        cost: KvCost,
        span: KeySpan | None,
    ) -> None:
        """``one_query``: what several queries are not faster than; ``name``: bit of the operator's name; ``cost``: at
        the nominal peak and the bandwidth of large streams; ``span``: makes its lengths from those of requests."""

class TimedKernel:
    """A kernel that reads the KV cache of decodes, with its times over consecutive steps."""

    def __init__(
        self,
        time_us: NDArray[np.float64],
        one_query_us: NDArray[np.float64] | None,
        kv_tokens: Sequence[int],
        is_estimate: bool,
        *,
        count: int,
        name: int,
        cost: KvCost,
    ) -> None:
        """Times and KV tokens of all requests: [steps]; the others as for ``DecodeKernel``."""

class Correlation:
    """Matérn correlations with fixed points: what all shapes share, and the share that is peculiar to near ones."""

    def __init__(
        self,
        coordinates: NDArray[np.float64],
        lengths: Sequence[float],
        own_lengths: Sequence[float],
        own_share: float,
    ) -> None:
        """``coordinates``: [points, dimensions]; lengths: [dimensions]."""

    def with_places(self, places: NDArray[np.float64]) -> NDArray[np.float64]:
        """[places, points] of ``places`` [places, dimensions]."""

    def among_points(self) -> NDArray[np.float64]:
        """[points, points] of the points with each other."""

class Kriging:
    """Expected residuals from correlations with points and their weights [points]."""

    def __init__(self, correlation: Correlation, weights: NDArray[np.float64], mean: float) -> None: ...
    def at(self, places: NDArray[np.float64]) -> NDArray[np.float64]:
        """[places] of ``places`` [places, dimensions]; each the same bit for bit in any company."""

class PrefillTile:
    """Tiles of FA3 for keys and values of ``width`` dimensions together: query rows, keys of a block, and a block's
    time over that of its FLOPs at the peak of an SM."""

    def __init__(self, *, width: float, rows: float, block_tokens: float, block_share: float) -> None: ...

class PrefillReference:
    """Constants of the reference model of FA3 prefills on one GPU, see aicb/kernels/prefill_attention.py."""

    def __init__(
        self,
        *,
        floor_us: float,
        tile_us: float,
        tile_width_us: float,
        split_width_us: float,
        combine_us: float,
        combine_row_us: float,
        tiles: list[PrefillTile],
        peak_flops: float,
        sms: float,
    ) -> None: ...
    def times_us(self, shapes: NDArray[np.float64]) -> NDArray[np.float64]:
        """[shapes] µs; columns as of ``PrefillTimes`` there."""

    def coordinates(self, shapes: NDArray[np.float64]) -> NDArray[np.float64]:
        """[shapes, 8] of the residuals."""

def causal_pairs(new_tokens: NDArray[np.float64], kv_tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    """[requests] (query, key) pairs under a causal mask aligned at the end."""

class PrefillRates:
    """FLOPs per pair of a query and a key, bytes per KV token and per new token."""

    def __init__(self, *, flops_per_pair: float, bytes_per_kv_token: float, bytes_per_new_token: float) -> None: ...

class PrefillBound:
    """Peaks of the GPU that prefills are measured on; operands up to ``resident_bytes`` stay in L2."""

    def __init__(self, *, peak_flops: float, bytes_per_s: float, resident_bytes: float) -> None: ...

class PrefillTransfer:
    """Scaling of measured prefills to another GPU: reached peaks of both, nominal peaks of the target."""

    def __init__(
        self,
        *,
        origin_latency_us: float,
        target_latency_us: float,
        origin_flops: float,
        origin_bytes_per_s: float,
        target_flops: float,
        target_bytes_per_s: float,
        peak_flops: float,
        bytes_per_s: float,
    ) -> None: ...

class PrefillTimes:
    """FA3 prefills of one geometry."""

    def __init__(
        self,
        geometry: tuple[int, int, int, int],
        *,
        reference: PrefillReference,
        bound: PrefillBound,
        rates: PrefillRates,
        reach: tuple[float, float, float],
        is_estimate: bool,
        keeps_measured: bool,
        residuals: Kriging,
        transfer: PrefillTransfer | None = None,
        window: float | None = None,
    ) -> None:
        """``geometry``: heads, KV heads, d_qk, d_v; ``reach``: least and most new tokens, most KV tokens that are not
        an estimate; ``keeps_measured``: measured times may lie below the roofline; ``residuals``: of the reference;
        ``window``: keys that a query sees at most."""

    def insert_measured(self, requests: int, kv_tokens: int, new_tokens: int, time_us: float) -> None:
        """Time of a batch of equal requests that was measured."""

    def of(self, new_tokens: NDArray[np.int64], kv_tokens: NDArray[np.int64]) -> tuple[float, bool, bool]:
        """µs of one batch, whether it was measured, whether it is an estimate."""

class MixedCall:
    """Prompts and decodes in one call of FA3, see aicb/kernels/mixed_attention.py."""

    def __init__(
        self,
        *,
        floor_us: float,
        decode_floor_us: float,
        split_us: float,
        prompt_split_us: float,
        start_us: float,
        key_us: float,
        rows: float,
        block_tokens: float,
        sharing: float,
        kv_heads: float,
        sms: float,
        split_tokens: float,
        is_estimate: bool,
    ) -> None: ...
    def time_us(
        self,
        prompts_us: float,
        new_tokens: NDArray[np.int64],
        prompts_kv: NDArray[np.int64],
        decodes_us: float,
        decodes_kv: NDArray[np.int64],
    ) -> float:
        """µs of prompts and decodes with their times alone; of the prompts where there are no decodes."""

class PrefillKernel:
    """A kernel over the prompts of an iteration."""

    def __init__(
        self,
        times: PrefillTimes,
        *,
        count: int,
        name: int,
        stream_bytes_per_s: float,
        load_flops: float,
        span: KeySpan | None,
        mixed: MixedCall | None,
    ) -> None:
        """``name``: bit of the operator's name; ``stream_bytes_per_s``: bandwidth of large streams; ``load_flops``:
        FLOP/s that load the power budget as dense products at their peak; ``span``: makes the requests of the kernel
        from those of the batch; ``mixed``: decodes of the same batch are in one call."""

class OperatorGroup(Enum):
    """Groups of operators by what they depend on, see aicb/core/priced_operators.hpp."""

    TOKENS = 0
    OTHER_DECODE_KERNELS = 1
    MASKED_EXPERTS = 2
    CONTIGUOUS_EXPERTS = 3
    HEAD = 4
    EXPANDED_CHUNK = 5
    EXPANDED_PAST = 6
    MERGED = 7
    RECURRENT_PROMPTS = 8

class PricedOperators:
    """``aicb.iteration.pricing.PricedOperators`` with numbers for names and collectives."""

    def __init__(
        self,
        phase_ps: Sequence[int],
        sums_ps: tuple[int, int, int, int],
        estimated: int,
        communications: int,
    ) -> None:
        """``sums_ps``: total, estimated, clocked and tensor time; ``estimated``: bits of names."""

    @property
    def phase_ps(self) -> list[int]: ...
    @property
    def total_ps(self) -> int: ...
    def __add__(self, other: PricedOperators) -> PricedOperators:
        """Times and estimates of both; the collectives stay those of the first."""

    def scaled_to(self, total_ps: int) -> PricedOperators:
        """The same kernels with so much exposed time, all phases in proportion."""

def priced_together(tokens: int, run: int) -> list[int]:
    """Counts that are priced with this one: about ``run`` of those between which groups are interpolated."""

class ShortChunks:
    """Absorbed attention of chunks of prompts of up to ``most_tokens`` tokens, of all heads."""

    def __init__(
        self,
        *,
        most_tokens: int,
        reach_tokens: int,
        is_estimate: bool,
        start_us: float,
        pair_us: float,
        query_us: float,
        flops_per_pair: float,
        bytes_per_query: float,
        bytes_per_key: float,
        count: int,
        name: int,
        stream_bytes_per_s: float,
        peak_flops: float,
    ) -> None:
        """``reach_tokens``: keys of a chunk beyond which its time is an estimate; ``name``: bit of the operator's."""

class PromptKernels:
    """Which kernels run over prompts besides those that are functions of all lengths."""

    def __init__(self, *, expand_latents: bool, are_recurrent: bool, chunks: ShortChunks | None = None) -> None: ...

class InternTable:
    """InternTable of sets of estimated operators and of lists of collectives."""

    def __init__(self) -> None: ...
    def estimated(self, number: int) -> int:
        """Bits of the names of a set."""

    def communications(self, number: int) -> tuple[int, int, int]:
        """Lists of collectives that follow each other."""

class ClockLaw:
    """SM clock against the tensor cores' share of their nominal peak: linear between a light and a heavy share."""

    def __init__(
        self, *, reference_mhz: float, light_mhz: float, heavy_mhz: float, light_share: float, heavy_share: float
    ) -> None: ...
    def mhz(self, tensor_share: NDArray[np.float64]) -> NDArray[np.float64]:
        """[iterations] clock under a steady load of this share."""

    def slowdown(self, tensor_share: NDArray[np.float64]) -> NDArray[np.float64]:
        """[iterations] by which what follows the clock takes longer than at the reference."""

@overload
def clocked_share(time_us: float, memory_us: float) -> float: ...
@overload
def clocked_share(time_us: NDArray[np.float64], memory_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """[kernels] part of the time that follows the clock: ``1 − min(memory time / time, 1)²``."""

class OverlapSegment:
    """Compute of one half batch while the other communicates; ``share`` of the iteration's time."""

    def __init__(self, compute_ps: float, communication_ps: float, share: float) -> None: ...

def overlapped_ps(not_overlapped_ps: float, segments: Sequence[OverlapSegment], slowdown: float) -> float:
    """The longer of compute and communication in every segment, and what no communication overlaps."""

PiecePs = tuple[float, float]
"""(compute, communication on an idle fabric) [ps]"""

class PingPong:
    """Micro-batches that take turns on attention workers and FFN workers (aicb/iteration/ping_pong.py)."""

    def __init__(
        self,
        *,
        kind_of_layer: Sequence[int],
        pieces: Sequence[Sequence[tuple[PiecePs, PiecePs, PiecePs, PiecePs]]],
        first: Sequence[PiecePs],
        last: PiecePs,
    ) -> None: ...
    def time(self) -> PingPongTime:
        """Length of the schedule as a function of the slowdown of communication."""

    def timeline(self, slowdown: float = 1.0) -> NDArray[np.float64]:
        """[layers, micro-batches, 4, 2] begin and end of attention, send, FFN and return."""

class PingPongTime:
    """Length of a schedule: convex and piecewise linear in the slowdown of communication."""

    @property
    def not_overlapped_ps(self) -> float: ...
    @property
    def overlapped(self) -> list[tuple[float, float, float]]:
        """(compute, communication, share) of each segment, as those of two-batch overlap."""

    @property
    def attention_ps(self) -> float:
        """On the longest path where communication takes no time: compute of attention workers before the last piece."""

    @property
    def ffn_ps(self) -> float:
        """On the same path: compute of FFN workers."""

    @property
    def last_ps(self) -> float:
        """Compute of the last piece."""

    def lasting_ps(self, slowdown: float = 1.0) -> float: ...

class HostTimes:
    """Host times of one stage, and what launches cost the device (aicb/core/stage_pricing.hpp)."""

    def __init__(
        self,
        *,
        step_ps: int,
        gaps_ps: int,
        prepare_ps: int,
        prompt_ps: int,
        token_ps: int,
        request_ps: int,
        hand_over_ps: int,
        full_ps: int,
        piecewise_ps: int,
        eager_ps: int,
    ) -> None: ...

class StageRules:
    """Padding, host and clocks of one stage."""

    def __init__(
        self,
        *,
        graph_sizes: Sequence[int],
        prompt_graph_sizes: Sequence[int],
        replays_divided: bool,
        shares_experts: bool,
        host: HostTimes,
        clock: ClockLaw | None,
        settled_clock: ClockLaw | None,
    ) -> None: ...
    @property
    def graph_sizes(self) -> list[int]: ...
    @property
    def prompt_graph_sizes(self) -> list[int]: ...

class IterationCost:
    """``aicb.iteration.pricing.IterationCost`` with numbers for names and collectives."""

    @property
    def compute_ps(self) -> int: ...
    @property
    def host_ps(self) -> int: ...
    @property
    def estimated_ps(self) -> int: ...
    @property
    def prepare_ps(self) -> int: ...
    @property
    def launch_ps(self) -> int: ...
    @property
    def hand_over_ps(self) -> int: ...
    @property
    def phase_ps(self) -> list[int]: ...
    @property
    def estimated(self) -> int: ...
    @property
    def communications(self) -> int: ...

class IterationPricing:
    """What an event loop in C++ calls (aicb/core/include/aicb/iteration_pricing.hpp)."""

    def price(
        self,
        new_tokens: NDArray[np.int64] | None,
        kv_tokens: NDArray[np.int64],
        requests: NDArray[np.int64],
        logit_rows: NDArray[np.int64],
        steps: int = 1,
    ) -> tuple[IterationCost, NDArray[np.int64]] | None:
        """The first of ``steps`` iterations, and [steps] ``compute_ps``; ``None`` where something is missing.

        ``new_tokens``, ``kv_tokens``: [requests of all ranks], one new token each without the first; ``requests``,
        ``logit_rows``: [ranks].
        """

    def host_work(
        self, new_tokens: NDArray[np.int64], kv_tokens: NDArray[np.int64], requests: NDArray[np.int64]
    ) -> tuple[int, int, int]:
        """``prepare_ps``, ``launch_ps`` and ``hand_over_ps`` of an iteration."""

class StagePricing(IterationPricing):
    """Prices the iterations of one pipeline stage from groups of operators that Python prices."""

    def __init__(
        self, rules: StageRules, prefills: list[PrefillKernel], others: PromptKernels, interned: InternTable
    ) -> None: ...
    def price_queries(
        self,
        new_tokens: NDArray[np.int64] | None,
        kv_tokens: NDArray[np.int64],
        requests: NDArray[np.int64],
        *,
        rows: int,
        steps: int,
        queries: int,
    ) -> tuple[IterationCost, NDArray[np.int64]] | None:
        """``price`` where each decode computes so many queries, and ``rows`` of logits."""

    def price_timed(
        self,
        ranks: list[tuple[int, PricedOperators, list[TimedKernel]]],
        *,
        steps: int,
        most_requests: int,
        logit_rows: int,
        is_decode: bool,
        is_divided: bool,
    ) -> tuple[IterationCost, NDArray[np.int64]] | None:
        """``price`` with attention that is timed elsewhere: per rank its tokens, what does not read the cache of
        decodes, and the kernels that do."""

    def take_missing_groups(self) -> list[tuple[OperatorGroup, int, int]]: ...
    def take_missing_sizes(self) -> list[tuple[int, int]]:
        """Decodes as (requests, queries)."""

    def insert_group(self, key: tuple[OperatorGroup, int, int], priced: PricedOperators) -> None: ...
    def insert_size(self, size: tuple[int, int], kernels: list[DecodeKernel]) -> None: ...
