"""Kernels between the projection of queries, keys and values and their attention, where SGLang's are others.

SGLang 0.5.17 normalises queries and keys in one kernel, rotates both in one, and writes KV in another or, in models
with experts, in the same (kernels ``fused_qknorm_warp``, ``fused_rope_kernel``, ``fused_rope_store_kernel`` and
``store_kvcache`` of its traces, ``tests/data/engine/sglang-h200-layers.json.gz``). All four were measured alone
(`aicb.profiling.libraries.sglang_ops`). A cache in fp8 and latents are written as elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from aicb.kernels.elementwise import Elementwise
from aicb.model.architecture import GroupedQueryAttention, Model, MoeFfn
from aicb.model.precision import Precision
from aicb.operators.mla import RopeKernel
from aicb.operators.operator import Operator

_OWN = {"rope": "sglang_rope", "kv_write": "sglang_kv_write"}
"""SGLang's kernel in place of a generic one."""


def writes_with_rotary(model: Model) -> bool:
    """Whether SGLang writes KV in the kernel of the rotary embedding (``models/qwen3_moe.py``, ``gpt_oss.py``): here of
    models with experts whose heads are normalised or have sinks, so that GLM's count as well."""
    attention = [kind.attention for kind in model.kinds if isinstance(kind.attention, GroupedQueryAttention)]
    has_experts = any(isinstance(kind.ffn, MoeFfn) for kind in model.kinds)
    return has_experts and any(each.qk_norm == "per_head" or each.has_sinks for each in attention)


def rotated_by(kernel: RopeKernel, operators: Iterable[Operator], model: Model) -> list[Operator]:
    """Operators of tokens, those before attention as ``kernel`` says."""
    if kernel != "sglang":
        return list(operators)
    has_one = {("q_norm", "k_norm"): "qk_norm"}
    if writes_with_rotary(model):
        has_one["rope", "kv_write"] = "rope_write"
    found: list[Operator] = []
    for operator in operators:
        made = operator.kernel
        pair = (found[-1].name, operator.name) if found else ("", "")
        if isinstance(made, Elementwise) and made.name in ("head_norm", "kv_write") and pair in has_one:
            found[-1] = _in_one(found[-1], operator, has_one[pair])
        elif isinstance(made, Elementwise) and made.name == "kv_write":
            found[-1:] = [_own(found[-1]), _own(operator)]
        else:
            found.append(operator)
    return found


def _in_one(first: Operator, second: Operator, kernel: str) -> Operator:
    """Both operators in one kernel, which is also its name: heads as more rows, what is rotated and written as more
    columns."""
    one, other = first.kernel, second.kernel
    assert isinstance(one, Elementwise)
    assert isinstance(other, Elementwise)
    size = (one.rows + other.rows, one.cols) if kernel == "qk_norm" else (one.rows, one.cols + other.cols)
    moved, resident = one.moved_bytes + other.moved_bytes, first.weight_elements + second.weight_elements
    made = Elementwise(kernel, *size, moved)
    return replace(first, name=kernel, kernel=made, cost=made.cost(Precision()), weight_elements=resident)


def _own(operator: Operator) -> Operator:
    """SGLang's kernel in place of a generic one that rotates or writes; another operator as it is."""
    made = operator.kernel
    if not isinstance(made, Elementwise) or made.name not in _OWN:
        return operator
    return replace(operator, kernel=replace(made, name=_OWN[made.name]))
