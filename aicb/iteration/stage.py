"""Iterations of one pipeline stage, composed in C++ (``aicb/core``) from groups of operators.

C++ composes an iteration from groups of operators, each of which depends on few integers (tokens, rows), and from
attention, whose times are functions of the lengths in C++, or come from Python. C++ lists the groups that it has not
seen yet, and ``StagePricer.price_missing`` prices them.

Token counts of eager iterations and of expanded latents take thousands of values. Groups are priced at 64 counts per
octave and at the count after each (all below 256), and C++ interpolates linearly between them. Kernels compute whole
tiles, so that times jump from a multiple of the tile to the count after it, by up to a sixth, and hardly grow between.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

import aicb._core as _core
from aicb._core import OperatorGroup
from aicb.iteration.attention import AttentionPricing
from aicb.iteration.graph_sizes import GraphSizes
from aicb.iteration.pricing import IterationCost, PricedOperators
from aicb.measurements.gpu import Gpu
from aicb.operators.batch import RankBatches, are_divided
from aicb.operators.operator import Communication

Communications = tuple[tuple[Communication, int], ...]
GroupKey = tuple[OperatorGroup, int, int]

RUNS = (16, 32, 64, 128, 256)
"""Token counts priced together when groups of a kind are missing for the first, second… time: a simulation that asks
often meets most of them in the end, and many together take little more than one alone. Experts that all ranks share
depend on two counts: those of one count are priced together once this count comes back, as full budgets do."""
EXPERTS = (OperatorGroup.MASKED_EXPERTS, OperatorGroup.CONTIGUOUS_EXPERTS)

MOST_NAMES = 64
"""Most names of operators: a set of estimated operators is the bits of one integer in C++."""


@dataclass(frozen=True, slots=True)
class NameTable:
    """Numbers for operator names and lists of collectives in C++, shared by the stages of a model."""

    interned: _core.InternTable = field(default_factory=_core.InternTable)
    _names: dict[str, int] = field(default_factory=dict)
    _lists: dict[Communications, int] = field(default_factory=lambda: {(): 0})
    _listed: list[Communications] = field(default_factory=lambda: [()])
    """By their numbers."""
    _estimated: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _communications: dict[int, Communications] = field(default_factory=dict)

    def bit(self, name: str) -> int:
        """Bit that stands for an operator's name."""
        place = self._names.setdefault(name, len(self._names))
        assert place < MOST_NAMES, f"more than {MOST_NAMES} names of operators"
        return 1 << place

    def bits(self, names: frozenset[str]) -> int:
        return sum(self.bit(name) for name in sorted(names))

    def in_core(self, priced: PricedOperators) -> _core.PricedOperators:
        """Priced operators for C++, with numbers for names and collectives."""
        sums_ps = (priced.total_ps, priced.estimated_ps, priced.clocked_ps, priced.tensor_ps)
        names, collectives = self.bits(priced.estimated), self.list_of(priced.communications)
        return _core.PricedOperators(priced.phase_ps, sums_ps, names, collectives)

    def list_of(self, communications: Communications) -> int:
        """Number that stands for a list of collectives."""
        number = self._lists.setdefault(communications, len(self._listed))
        if number == len(self._listed):
            self._listed.append(communications)
        return number

    def estimated(self, number: int) -> tuple[str, ...]:
        """Names, sorted, in the set of estimated operators with this number."""
        if number not in self._estimated:
            bits = self.interned.estimated(number)
            self._estimated[number] = tuple(sorted(name for name, place in self._names.items() if bits >> place & 1))
        return self._estimated[number]

    def communications(self, number: int) -> Communications:
        """Collectives of an iteration, by the number of their list."""
        if number not in self._communications:
            whole = [self._listed[part] for part in self.interned.communications(number)]
            self._communications[number] = tuple(each for part in whole for each in part)
        return self._communications[number]

    def cost(self, found: _core.IterationCost) -> IterationCost:
        return IterationCost(
            found.compute_ps,
            found.host_ps,
            tuple(found.phase_ps),
            self.communications(found.communications),
            found.estimated_ps,
            self.estimated(found.estimated),
            found.prepare_ps,
            found.launch_ps,
            found.hand_over_ps,
        )


class StagePricer:
    """Pricer of one stage: the pricing in C++, supplied with the groups and kernels that it needs.

    Args:
        rules: padding, host and clock of the stage.
        attention: pricing of the model's attention.
        price_groups: prices groups of operators together.
        names: numbers of names and collectives of the model.
        stage: pipeline stage.
    """

    def __init__(
        self,
        rules: _core.StageRules,
        attention: AttentionPricing,
        price_groups: Callable[[Sequence[GroupKey]], list[_core.PricedOperators]],
        names: NameTable,
        stage: int,
    ):
        self._attention, self._price_groups, self._names, self._stage = attention, price_groups, names, stage
        self.knows_attention = attention.is_in_core(stage)
        """Whether an event loop in C++ can price iterations without Python."""
        prefills = attention.core_prefills(stage, names.bit) if self.knows_attention else []
        self._graph_sizes = sorted({*rules.graph_sizes, *rules.prompt_graph_sizes})
        self._groups: dict[GroupKey, _core.PricedOperators] = {}
        self._sizes: dict[tuple[int, int], list[_core.DecodeKernel]] = {}
        """What C++ has been given."""
        self._asked: Counter[tuple[OperatorGroup, int]] = Counter()
        """How often groups of a line were missing."""
        self._arguments = (rules, prefills, attention.prompt_kernels(stage, names.bit), names.interned)
        self.pricing = _core.StagePricing(*self._arguments)

    def price(
        self, ranks: RankBatches, *, rows: int, steps: int = 1, queries: int = 1
    ) -> tuple[IterationCost, NDArray[np.int64]]:
        """The first of ``steps`` iterations that compute ``rows`` of logits, and [steps] ``compute_ps`` of all.

        Times of the device: nothing of the host is exposed.
        """
        ask = self._of_lengths if self.knows_attention else self._of_times
        price = ask(ranks, rows, steps, queries)
        while (found := price()) is None:
            self.price_missing()
        return self._names.cost(found[0]), found[1]

    def _of_lengths(self, ranks: RankBatches, rows: int, steps: int, queries: int) -> Callable[[], Found]:
        counts = np.array(ranks.requests, dtype=np.int64)
        return lambda: self.pricing.price_queries(
            ranks.new_tokens, ranks.kv_tokens, counts, rows=rows, steps=steps, queries=queries
        )

    def _of_times(self, ranks: RankBatches, rows: int, steps: int, queries: int) -> Callable[[], Found]:
        is_decode, batches = ranks.is_decode, ranks.split()
        timed = []
        for batch in batches:
            prompts, decodes = self._attention.timed(
                batch, is_decode=is_decode, steps=steps, queries=queries, stage=self._stage, bit=self._names.bit
            )
            timed.append((batch.tokens_with(queries), self._names.in_core(prompts), decodes))
        return lambda: self.pricing.price_timed(
            timed,
            steps=steps,
            most_requests=max(ranks.requests),
            logit_rows=rows,
            is_decode=is_decode,
            is_divided=are_divided(batches),
        )

    def price_missing(self) -> None:
        """Prices all groups and kernels that C++ found missing, together."""
        asked = list(dict.fromkeys(self.pricing.take_missing_groups()))
        together = dict.fromkeys(each for key in asked for each in self._neighbours(key))
        self._asked.update(dict.fromkeys(map(_line, asked)).keys())
        missing = [key for key in together if key not in self._groups]
        for key, priced in zip(missing, self._price_groups(missing), strict=True):
            self._groups[key] = priced
            self.pricing.insert_group(key, priced)
        for size in dict.fromkeys(self.pricing.take_missing_sizes()):
            kernels = self._attention.decode_kernels(*size, self._stage)
            self._sizes[size] = [kernel.in_core(self._names.bit(kernel.name)) for kernel in kernels]
            self.pricing.insert_size(size, self._sizes[size])

    def forget_experts(self) -> None:
        """Routed experts are priced again: their load has changed."""
        self._groups = {key: priced for key, priced in self._groups.items() if key[0] not in EXPERTS}
        self.pricing = _core.StagePricing(*self._arguments)
        for key, priced in self._groups.items():
            self.pricing.insert_group(key, priced)
        for size, kernels in self._sizes.items():
            self.pricing.insert_size(size, kernels)

    def _neighbours(self, key: GroupKey) -> list[GroupKey]:
        """Groups to be priced with this one, included."""
        kind, tokens, second = key
        asked = self._asked[_line(key)]
        run = RUNS[min(asked, len(RUNS) - 1)]
        match kind:
            case OperatorGroup.TOKENS | OperatorGroup.OTHER_DECODE_KERNELS:
                return [(kind, count, second) for count in priced_together(tokens, run, self._graph_sizes)]
            case OperatorGroup.EXPANDED_CHUNK | OperatorGroup.EXPANDED_PAST | OperatorGroup.MERGED:
                return [(kind, count, second) for count in priced_together(tokens, run)]
            case OperatorGroup.CONTIGUOUS_EXPERTS if asked:
                reach = range(tokens, tokens * self._attention.ranks + 1)
                return [key, *((kind, tokens, count) for count in priced_together(second, run) if count in reach)]
        return [key]


def _line(key: GroupKey) -> tuple[OperatorGroup, int]:
    """Groups that differ in one integer: experts of one number of tokens of a rank, else all of a kind."""
    kind, tokens, _ = key
    return kind, tokens if kind == OperatorGroup.CONTIGUOUS_EXPERTS else 0


Found = tuple[_core.IterationCost, NDArray[np.int64]] | None


def priced_together(tokens: int, run: int, sizes: Sequence[int] = ()) -> list[int]:
    """Token counts in the run of this one: from ``sizes`` if it is one of them, else from the counts between which
    C++ interpolates."""
    if tokens in sizes:
        first = bisect_left(sizes, tokens) // run * run
        return list(sizes[first : first + run])
    return _core.priced_together(tokens, run)


def stage_rules(sizes: GraphSizes, shares_experts: bool, host: _core.HostTimes, gpu: Gpu) -> _core.StageRules:
    """``StageRules`` with the clocks of a GPU."""
    return _core.StageRules(
        graph_sizes=list(sizes.decodes),
        prompt_graph_sizes=list(sizes.prompts),
        replays_divided=sizes.replays_divided,
        shares_experts=shares_experts,
        host=host,
        clock=None if gpu.clock is None else gpu.clock.core,
        settled_clock=None if gpu.clock is None else gpu.clock.of(is_decode=True).core,
    )
