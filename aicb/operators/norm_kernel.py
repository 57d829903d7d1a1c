"""Norms that an engine runs in one kernel with the all-reduce before them.

``apart``: an all-reduce, then a norm. ``flashinfer``: FlashInfer's kernel, which also adds the residual and normalises;
what vLLM 0.24.0 compiles in on Hopper where FlashInfer is installed and tensor-parallel ranks reduce no more than so
many bytes (``compilation/passes/fusion/allreduce_rms_fusion.py``, ``config/vllm.py``: ``enable_allreduce_rms_fusion``).
On two H200s every all-reduce of Qwen3-8B, Mixtral-8x7B and GLM-4.5-Air ran so: two a layer and that of the embedding
(kernels of ``tests/data/engine/vllm-h200-tp2-*.json.gz``). Of Qwen3-Next's, those after the experts and that of the
embedding: what the projection after attention gives is copied first (`aicb.operators.hybrid_kernels`). Results of the
shared experts, which the norm adds to the routed ones' there, are then added by a kernel before it.

The embedding's all-reduce takes the norm of the first layer with it and the last layer's takes the final one, which is
still listed by itself, for the rows whose logits are computed: some 2 us of an iteration too many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, get_args

from aicb.kernels.elementwise import Elementwise
from aicb.operators.build import ACTIVATION_BYTES
from aicb.operators.operator import Communication, Operator
from boundary.errors import InputError

NormKernel = Literal["apart", "flashinfer"]

_MIB = 1 << 20
FUSED_UP_TO_BYTES = {2: 64 * _MIB, 4: 2 * _MIB, 8: _MIB // 2}
"""By ranks of the group, the largest all-reduce on Hopper: ``FI_ALLREDUCE_FUSION_MAX_SIZE_MB`` of vLLM."""
NORM_AFTER = {
    **dict.fromkeys(("attention_all_reduce", "gdn_all_reduce"), "post_attention_norm"),
    **dict.fromkeys(("ffn_all_reduce", "moe_all_reduce"), "input_norm"),
    "embedding_all_reduce": "",
}
"""By all-reduce, the norm of a layer that is no longer listed by itself; the embedding's has that of the first layer,
for which the last layer's has the final one."""
SUMMING_NORM = "offset_sum_norm"
"""Also adds the shared experts' results (`aicb.operators.hybrid_kernels`)."""
FUSED_NORMS = {
    "add_rms_norm": frozenset(NORM_AFTER),
    SUMMING_NORM: frozenset(("ffn_all_reduce", "moe_all_reduce", "embedding_all_reduce")),
}
"""By the kernel of a norm, the all-reduces that it is fused with."""


def check_norm_kernel(chosen: str) -> None:
    """Raises: InputError, no such kernel."""
    if chosen not in get_args(NormKernel):
        raise InputError(f"norm_kernel: found {chosen!r}, expected one of {', '.join(get_args(NormKernel))}")


def normalised_by(kernel: NormKernel, operators: Iterable[Operator], tp: int) -> list[Operator]:
    """The operators of tokens, whose norms are listed ``apart``, as ``kernel`` runs them among ``tp`` ranks."""
    listed, most = list(operators), FUSED_UP_TO_BYTES.get(tp, 0)
    norms = {each.name: each for each in listed if each.name in NORM_AFTER.values()}
    reduced = frozenset().union(*(_fused_with(each) for each in norms.values()))
    if kernel == "apart" or not reduced:
        return listed
    fused: Counter[str] = Counter()
    found: list[Operator] = []
    for operator in listed:
        made = operator.kernel
        if operator.name in reduced and isinstance(made, Communication) and made.size_bytes <= most:
            norm = NORM_AFTER[operator.name]
            together = replace(made, is_normalised=True)
            weights = norms[norm].weight_elements if norm in norms else 0
            found.append(replace(operator, kernel=together, weight_elements=weights))
            fused[norm] += operator.count
        else:
            found.append(operator)
    left = (part for each in found for part in _without(each, fused[each.name] if each.name in norms else 0))
    return [each for each in left if each.count > 0]


def _fused_with(norm: Operator) -> frozenset[str]:
    made = norm.kernel
    return FUSED_NORMS.get(made.name, frozenset()) if isinstance(made, Elementwise) else frozenset()


def _without(operator: Operator, fused: int) -> list[Operator]:
    """A norm less those that run with an all-reduce, and the sums that such norms no longer make."""
    if not fused:
        return [operator]
    left, made = replace(operator, count=operator.count - fused), operator.kernel
    if not isinstance(made, Elementwise) or made.name != SUMMING_NORM:
        return [left]
    moved = 3 * ACTIVATION_BYTES * made.rows * made.cols
    added = replace(made, name="add", moved_bytes=moved)
    return [left, replace(operator, name="shared_add", kernel=added, count=fused, weight_elements=0)]
