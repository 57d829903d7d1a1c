"""Launches of an iteration that no CUDA graph replays, as vLLM 0.24 makes them from the operators of a stage.

Most operators are one launch. What differs is in `LAUNCHES`, read off lists of kernels of running engines (prompts of
1,024 tokens on one H200, ``tests/data/engine/vllm-host-default.json.gz``). Counts of whole stages from these lists:

================================ ======== ======
launches outside graphs, by layer measured counted
================================ ======== ======
Qwen3-8B, compiled pieces            12.2     12
Qwen3-30B-A3B                        17.0     17
Qwen3-Next-80B-A3B, 8 layers         38.3     37.5
DeepSeek-V3 fp8, 8 layers            28.8     28
Qwen3-8B, graphs between attention    4.2      4
Qwen3-30B-A3B                         4.0      4
Qwen3-Next-80B-A3B, 8 layers         16.0     14.5
DeepSeek-V3 fp8, 8 layers             6.1      7
================================ ======== ======

Measured: launch calls of the host in one step, less the 21 (30 of Qwen3-Next) that a step of graphs alone has as well.

Launches do not all take as long: Python around a kernel of a compiled piece is short, that of experts long. What a
call of each kind takes is in `CALLS` and the constants below it, in mean launches of Qwen3-30B-A3B, of which a layer
has 17; so an eager iteration is `Launches.eager_time` times ``eager_launch_us`` of a host, whatever the model. Measured
in eight processes with stamps inside, the same loops of torch's and Triton's launches between them as a common unit
(one H100, 2026-11-26, ``tests/data/engine/vllm-host-classes.json.gz``); there a launch is 86.5 us where ``x.add_(1)``
takes 9.6. First calls of a forward pass take longer, until what they touch is in the processor's caches; layers from
the third on were taken, and what the first two take more is in `FORWARD` and `FIRST`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from aicb.iteration.pricing import FUSED_OPERATORS
from aicb.operators.operator import Communication, Operator, Phase

LAUNCHES = {
    "q_norm": 2,  # norms of all heads, rotary embedding: one compiled kernel each
    "prefill_attention": 2,  # FlashAttention-3 and the kernel that prepares its schedule
    "moe_align": 2,  # block sizes of experts, places of tokens
    "moe_output": 0,  # a copy, no kernel
    "moe_shared_slot": 0,  # SGLang's: a launch as counted here stands for more there (aicb.iteration.sglang_host.EAGER)
    "moe_experts": 10,  # of a prompt: three sort, one each copies, activates and sums, two quantise, two multiply
    "shared_gate_mul": 2,  # sigmoid, product
    "shared_add": 0,  # in the norm that follows
    "gdn_qkvz": 3,  # product, two kernels that split it
    "gdn_gated_norm": 2,
    "gdn_prefill": 18,  # six kernels of the chunked rule; states are gathered, cleared, copied and put back
}
"""By operator; of others one."""

LISTED_APART = {
    "gdn_qkvz": 1,
    "gdn_split": 2,
    "gdn_gated_norm": 1,
    "shared_gate_mul": 1,
    "gated_head_norm": 2,  # weights one off, compiled; the kernel
    "gdn_prefill": 14,  # counted in tests/data/engine/vllm-eager-layers.json.gz, without what is listed with it
}
"""Where what goes with these operators is listed, too (``aicb.operators.hybrid_kernels``, compiled)."""

IN_PIECE, IN_PIECE_APART = 0.39, 0.66
"""A kernel that a compiled piece launches by itself, 34 us; by an operator of vLLM's (fp8 products and what quantises
for them), 57 us."""
PIECE = 0.35
"""More for each piece, one a layer: 30 us."""
SHARED, SHARED_APART = 1.0, 1.5
"""A kernel of shared experts, which run uncompiled within the experts' operator, on a second stream: bf16 and fp8."""
CALLS = {
    "attention": 2.95,
    "latent_attention": 6.75,
    "delta_rule": 17.5,
    "experts": 11.5,
    "experts_grouped": 20.8,
    "experts_flashinfer": 10.2,
    "experts_fp8": 18.7,
    "experts_mxfp4": 36.8,
}
"""One call with all that it launches: attention with writing KV (FlashAttention-3; 131 us in Qwen3-8B and 154 in
Qwen3-30B-A3B, 55 and 45 to write, 31 for each of the two operators around them), the same of MLA for a prompt, which
expands its KV, the rule in chunks with its convolution, experts with router and what sorts tokens (Triton). With a
correction of the router's scores vLLM chooses experts in a function that torch compiles by itself, which is called
through its guards, as is the activation of shared experts there: 25.0 and 26.8 in two sessions of GLM-4.5-Air with
three layers of experts, less three kernels of shared experts and what first calls take (this table had 11.5 for it).
FlashInfer's one call took 582 and 585 us in two sessions of MiniMax-M2 with TP 2 and EP 2, in which all else of an
eager pass, counted as here, took 57.4 and 57.0 us a launch
(``tests/data/engine/vllm-h100-tp2-ep2-minimax-m2-l12.json.gz``).
In mxfp4, of gpt-oss-20b, 12.7 calls of attention in one session and 12.3 in another
(``tests/data/engine/vllm-h100-tp1-gpt-oss-20b*.json.gz``). In Marlin's kernel, which was not measured, as bf16 experts,
which launch as many."""
EXPERTS_BY_WEIGHTS = {"bf16": "experts", "fp8": "experts_fp8", "mxfp4": "experts_mxfp4"}
FORWARD, FIRST = 10.0, 0.3
"""A forward pass besides its layers, and the share of a call by which the first ones of experts and of the delta rule
take longer."""

GRAPH = 0.4
"""In pieces mode, in launches of Qwen3-30B-A3B there (four a layer): replay of a piece's graph."""
CALLS_BETWEEN_GRAPHS = {"attention": 3.6, "latent_attention": 7.7, "delta_rule": 31.2}
FORWARD_OF_GRAPHS = 14.5
"""The same as `FORWARD`."""

HYBRID_PREPARING, HYBRID_PROMPT_PREPARING = 8.0, 18.0
"""Launches that an iteration of a model with delta rules takes longer to prepare, and one with prompts besides: what
vLLM computes of lengths and places of states. 0.7 and 1.55 ms more than in Qwen3-30B-A3B."""

COLLECTIVES = {"all_reduce": 3.5, "all_gather": 6.0, "reduce_scatter": 5.4}
"""Outside graphs, in launches of the same host, by vLLM's Python around them.

Engines of Qwen3-30B-A3B stamped inside (``tests/data/engine/vllm-h100-host-parts.json.gz``) take for a layer of a
prompt 9.7 times as long as for a call of attention in it with one worker and 6 layers, so that a launch is 0.504 of
such a call; with 16 layers 12.7 times with two (TP 2, vLLM's own kernel or NCCL) and 14.7 times with DP 2 and EP 2;
with one, two or four engines at once it is 9.7. That is 7.3 launches a layer for two all-reduces, more than two thirds
of them around the calls of the communicator, and 11.4 for gathering tokens for shared experts and scattering results:
2.4 and 1.9 in the communicator, and half of the rest each, in which the kernels are that shared experts have besides.
FlashInfer's call, which normalises as well, was not measured apart in engines and counts as an all-reduce. Other
collectives were not measured and count as one launch."""

APART_FROM_NORM = "quant"
"""Operators that compute an activation and quantise it are two kernels there."""

IN_ATTENTION = frozenset({"kv_write"})
"""Operators that depend on tokens alone and are part of vLLM's attention operator all the same."""
IN_CALLS = {
    "latent_attention": frozenset({"kv_b_quant", "kv_b", "kv_b_assemble_k", "kv_write"}),
    "attention": frozenset({"kv_write"}),
    "delta_rule": frozenset({"gdn_conv", "gdn_prepare", "gdn_results"}),
    "experts": frozenset({"router", "topk"}),
}
"""What is part of a call and takes nothing by itself; of experts all that begins with ``moe_``, too."""


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches of one iteration of a stage."""

    pieces: int
    """Where graphs replay what lies between attentions: a graph a layer, and what attention launches."""
    eager: int
    """Where no graph is replayed."""
    eager_time: float
    """The same by the time they keep the host, in mean launches of Qwen3-30B-A3B."""
    pieces_time: float
    """Likewise, of launches between graphs."""
    preparing: float = 0.0
    """More to prepare any iteration, in eager launches."""
    prompt_preparing: float = 0.0
    """And one with prompts."""

    def within_iteration(self) -> Launches:
        """Of a pass within another's iteration, without a forward pass's beginning: that of drafts was not measured."""
        return replace(self, eager_time=self.eager_time - FORWARD, pieces_time=self.pieces_time - FORWARD_OF_GRAPHS)


def count_launches(layers: int, attention: Iterable[Operator], others: Iterable[Operator]) -> Launches:
    """Launches of a stage.

    Args:
        layers: of the stage.
        attention: operators that depend on the lengths of a batch's requests.
        others: those that depend on numbers of tokens, collectives included; heads and embedding are not of a layer.
    """
    attention, others = list(attention), list(others)
    has_head_norms = any(operator.name == "q_norm" for operator in others)
    table = LAUNCHES | (LISTED_APART if any(operator.name == "gdn_join" for operator in others) else {})

    def total(operators: Iterable[Operator]) -> int:
        return sum(operator.count * _launches(operator, table, has_head_norms=has_head_norms) for operator in operators)

    own, eager = total(attention), total(others)
    calls = count_calls(attention, others)
    of_calls = frozenset().union(*(IN_CALLS[_kind(call)] for call in calls))
    apart = [each for each in (*attention, *others) if each.name not in of_calls and _call_of(each, calls) is None]
    between = [each for each in attention if each.name not in of_calls and _call_of(each, calls) is None]
    first = sum(CALLS[call] for call in calls if _kind(call) in ("experts", "delta_rule"))
    first_between = sum(CALLS_BETWEEN_GRAPHS[call] for call in calls if call == "delta_rule")
    has_rules = "delta_rule" in calls
    return Launches(
        pieces=layers + own + total(operator for operator in others if operator.name in IN_ATTENTION),
        eager=own + eager,
        eager_time=FORWARD
        + FIRST * first
        + PIECE * layers
        + sum(CALLS[call] * number for call, number in calls.items())
        + sum(each.count * _launching(each, _launches(each, table, has_head_norms=has_head_norms)) for each in apart),
        pieces_time=FORWARD_OF_GRAPHS
        + FIRST * first_between
        + GRAPH * layers
        + sum(CALLS_BETWEEN_GRAPHS.get(call, 0.0) * number for call, number in calls.items())
        + total(between),
        preparing=HYBRID_PREPARING if has_rules else 0.0,
        prompt_preparing=HYBRID_PROMPT_PREPARING if has_rules else 0.0,
    )


def count_calls(attention: Iterable[Operator], others: Iterable[Operator]) -> dict[str, int]:
    """Calls of a stage by their name in `CALLS`."""
    is_latent = any(operator.name == "kv_b" for operator in attention)
    is_grouped = any(getattr(operator.kernel, "name", "") == "grouped_topk" for operator in others)
    calls: Counter[str] = Counter()
    for operator in (*attention, *others):
        if operator.name.endswith("prefill_attention"):
            calls["latent_attention" if is_latent else "attention"] += operator.count
        elif operator.name == "gdn_prefill":
            calls["delta_rule"] += operator.count
        elif operator.name == "moe_experts":
            calls["experts_flashinfer"] += operator.count
        elif operator.name == "moe_down":
            is_marlin = getattr(operator.kernel, "gathering", "") == "marlin"
            call = "experts" if is_marlin else EXPERTS_BY_WEIGHTS[_dtype(operator)]
            calls["experts_grouped" if is_grouped and call == "experts" else call] += operator.count
    return dict(calls)


def _kind(call: str) -> str:
    return "experts" if call.startswith("experts") else call


def _call_of(operator: Operator, calls: Mapping[str, int]) -> str | None:
    """The call that an operator is, or is part of."""
    if operator.name.endswith("prefill_attention"):
        return "attention"
    if operator.name == "gdn_prefill":
        return "delta_rule"
    is_expert = operator.name.startswith("moe_") and not isinstance(operator.kernel, Communication)
    return "experts" if is_expert and any(_kind(call) == "experts" for call in calls) else None


def _launching(operator: Operator, launches: int) -> float:
    """What an operator of so many launches keeps the host, outside `CALLS`."""
    if isinstance(operator.kernel, Communication):
        return COLLECTIVES.get(operator.kernel.op, 1.0)
    if operator.phase is Phase.ATTENTION:
        return float(launches)  # not measured by itself
    own, apart = (SHARED, SHARED_APART) if operator.name.startswith("shared_") else (IN_PIECE, IN_PIECE_APART)
    if _is_activation_with_quantisation(operator):
        return own + apart
    return launches * (apart if _is_fp8(operator) or operator.name.endswith("quant") else own)


def _is_fp8(operator: Operator) -> bool:
    return _dtype(operator) == "fp8"


def _dtype(operator: Operator) -> str:
    """Format of its kernel's weights; empty where it has none."""
    return str(getattr(operator.kernel, "dtype", ""))


def _is_activation_with_quantisation(operator: Operator) -> bool:
    return operator.name.endswith("silu_mul") and getattr(operator.kernel, "name", "").endswith(APART_FROM_NORM)


def _launches(operator: Operator, table: Mapping[str, int], *, has_head_norms: bool) -> int:
    if has_head_norms and operator.name in FUSED_OPERATORS:
        return 0
    of_window = operator.name.endswith("prefill_attention")  # layers with a window have names of their own
    listed = table.get("prefill_attention" if of_window else operator.name, 1)
    return 2 if _is_activation_with_quantisation(operator) else listed
