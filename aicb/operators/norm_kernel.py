"""Norms that an engine runs in one kernel with the all-reduce before them.

``apart``: an all-reduce, then a norm. ``flashinfer``: FlashInfer's kernel, which also adds the residual and normalises;
what vLLM 0.24.0 compiles in on Hopper where FlashInfer is installed and tensor-parallel ranks reduce no more than so
many bytes (``compilation/passes/fusion/allreduce_rms_fusion.py``, ``config/vllm.py``: ``enable_allreduce_rms_fusion``).
On two H200s every all-reduce of Qwen3-8B, Mixtral-8x7B and GLM-4.5-Air ran so: two a layer and that of the embedding
(kernels of ``tests/data/engine/vllm-h200-tp2-*.json.gz``). Norms with weights that are one off (Gemma's, Qwen3-Next's)
are no such pattern, as their weights are of another format.

The embedding's all-reduce takes the norm of the first layer with it and the last layer's takes the final one, which is
still listed by itself, for the rows whose logits are computed: some 2 us of an iteration too many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, get_args

from aicb.kernels.elementwise import Elementwise
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
NORMS = frozenset(NORM_AFTER.values())
FUSED_NORM = "add_rms_norm"


def check_norm_kernel(chosen: str) -> None:
    """Raises: InputError, no such kernel."""
    if chosen not in get_args(NormKernel):
        raise InputError(f"norm_kernel: found {chosen!r}, expected one of {', '.join(get_args(NormKernel))}")


def normalised_by(kernel: NormKernel, operators: Iterable[Operator], tp: int) -> list[Operator]:
    """The operators of tokens, whose norms are listed ``apart``, as ``kernel`` runs them among ``tp`` ranks."""
    listed, most = list(operators), FUSED_UP_TO_BYTES.get(tp, 0)
    if kernel == "apart" or not any(_is_norm(each) for each in listed):
        return listed
    weights = {each.name: each.weight_elements for each in listed if _is_norm(each)}
    fused: Counter[str] = Counter()
    found: list[Operator] = []
    for operator in listed:
        made = operator.kernel
        norm = NORM_AFTER.get(operator.name)
        if norm is not None and isinstance(made, Communication) and made.size_bytes <= most:
            together = replace(made, is_normalised=True)
            found.append(replace(operator, kernel=together, weight_elements=weights.get(norm, 0)))
            fused[norm] += operator.count
        else:
            found.append(operator)
    left = [
        replace(each, count=each.count - fused[each.name]) if _is_norm(each) and fused[each.name] else each
        for each in found
    ]
    return [each for each in left if each.count > 0]


def _is_norm(operator: Operator) -> bool:
    made = operator.kernel
    return operator.name in NORMS and isinstance(made, Elementwise) and made.name == FUSED_NORM
