"""Launches of an iteration that no CUDA graph replays, as vLLM 0.24 makes them from the operators of a stage.

Most operators are one launch. What differs is in `LAUNCHES`, read off lists of kernels of running engines (prompts of
1,024 tokens on one H200, ``tests/data/engine/vllm-host-default.json.gz``). Counts of whole stages from these lists:

================================ ======== ======
launches outside graphs, by layer measured counted
================================ ======== ======
Qwen3-8B, compiled pieces            12.2     12
Qwen3-30B-A3B                        17.0     17
Qwen3-Next-80B-A3B, 8 layers         38.3     38.5
DeepSeek-V3 fp8, 8 layers            28.8     28
Qwen3-8B, graphs between attention    4.2      4
Qwen3-30B-A3B                         4.0      4
Qwen3-Next-80B-A3B, 8 layers         16.0     14.5
DeepSeek-V3 fp8, 8 layers             6.1      7
================================ ======== ======

Measured: launch calls of the host in one step, less the 21 (30 of Qwen3-Next) that a step of graphs alone has as well.

Collectives keep the host longer than a launch does (`COLLECTIVES`). Engines of Qwen3-30B-A3B stamped inside
(``tests/data/engine/vllm-h100-host-parts.json.gz``) take for a layer of a prompt 9.7 times as long as for a call of
attention in it with one worker, 12.4 to 12.9 times with two (TP 2), 14.7 times with DP 2 and EP 2; with one, two or
four engines at once it is 9.7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aicb.iteration.pricing import FUSED_OPERATORS
from aicb.operators.operator import Communication, Operator

LAUNCHES = {
    "q_norm": 2,  # norms of all heads, rotary embedding: one compiled kernel each
    "prefill_attention": 2,  # FlashAttention-3 and the kernel that prepares its schedule
    "moe_align": 2,  # block sizes of experts, places of tokens
    "shared_gate_mul": 2,  # sigmoid, product
    "shared_add": 0,  # in the norm that follows
    "gdn_qkvz": 3,  # product, two kernels that split it
    "gdn_gated_norm": 2,
    "gdn_prefill": 18,  # six kernels of the chunked rule; states are gathered, cleared, copied and put back
}
"""By operator; of others one."""

LISTED_APART = {
    "gdn_qkvz": 1,
    "gdn_gated_norm": 1,
    "shared_gate_mul": 1,
    "gated_head_norm": 2,  # weights one off, compiled; the kernel
    "gdn_prefill": 14,  # counted in tests/data/engine/vllm-eager-layers.json.gz, without what is listed with it
}
"""Where what goes with these operators is listed, too (``aicb.operators.hybrid_kernels``, compiled)."""

COLLECTIVES = {"all_reduce": 2.5, "all_gather": 3.1, "reduce_scatter": 2.7}
"""Outside graphs, in launches of the same host, by vLLM's Python around them.

A mean launch is 9.7 / 17 calls of attention. An all-reduce adds 1.31 of these (vLLM's own kernel, a copy before it) to
1.54 (NCCL): 2.3 to 2.7 launches. Gathering tokens for shared experts, three tensors by broadcasts in one group of NCCL
calls, takes 1.21, the scatter 0.94: 2.1 and 1.7 launches. Of the 5.0 that DP 2 and EP 2 add to a layer 1.1 are neither
these nor launches counted; both have half of it. Other collectives were not measured and count as one launch."""

APART_FROM_NORM = "quant"
"""Operators that compute an activation and quantise it are two kernels there."""

IN_ATTENTION = frozenset({"kv_write"})
"""Operators that depend on tokens alone and are part of vLLM's attention operator all the same."""


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches of one iteration of a stage."""

    pieces: int
    """Where graphs replay what lies between attentions: a graph a layer, and what attention launches."""
    eager: int
    """Where no graph is replayed."""
    eager_time: float
    """The same by the time they keep the host, in launches."""


def count_launches(layers: int, attention: Iterable[Operator], others: Iterable[Operator]) -> Launches:
    """Launches of a stage.

    Args:
        layers: of the stage.
        attention: operators that depend on the lengths of a batch's requests.
        others: those that depend on numbers of tokens, collectives included; heads and embedding are not of a layer.
    """
    others = list(others)
    has_head_norms = any(operator.name == "q_norm" for operator in others)
    table = LAUNCHES | (LISTED_APART if any(operator.name == "gdn_join" for operator in others) else {})

    def total(operators: Iterable[Operator]) -> int:
        return sum(operator.count * _launches(operator, table, has_head_norms=has_head_norms) for operator in operators)

    own, eager = total(attention), total(others)
    collectives = [(each.kernel, each.count) for each in others if isinstance(each.kernel, Communication)]
    longer = sum(count * (COLLECTIVES.get(collective.op, 1.0) - 1.0) for collective, count in collectives)
    return Launches(
        pieces=layers + own + total(operator for operator in others if operator.name in IN_ATTENTION),
        eager=own + eager,
        eager_time=own + eager + longer,
    )


def _launches(operator: Operator, table: Mapping[str, int], *, has_head_norms: bool) -> int:
    if has_head_norms and operator.name in FUSED_OPERATORS:
        return 0
    is_two = operator.name.endswith("silu_mul") and getattr(operator.kernel, "name", "").endswith(APART_FROM_NORM)
    of_window = operator.name.endswith("prefill_attention")  # layers with a window have names of their own
    return 2 if is_two else table.get("prefill_attention" if of_window else operator.name, 1)
