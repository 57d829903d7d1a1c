"""Gated delta rule of flash-linear-attention (``fla-core``): chunked prefill, recurrent decode."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from itertools import accumulate
from types import ModuleType

import torch

from aicb.kernels.point import Point
from aicb.profiling.kernel_library import Kernel, normal, relative_error

_TOLERANCE = 2.0**-6
"""Chunked form: bf16 operands of five products in a row; recurrent form: bf16 output of fp32 sums."""
_REFERENCE_TOKENS = 4096
"""Leading tokens that are checked, 64 chunks: the reference goes token by token, and the rule is causal."""


class FlashLinearAttention:
    """``fla.ops.gated_delta_rule``."""

    def __init__(self) -> None:
        self._ops: ModuleType | None = None
        self._missing: str | None = None
        try:
            self._ops = importlib.import_module("fla.ops.gated_delta_rule")
        except (ImportError, OSError, RuntimeError) as error:
            self._missing = f"fla: {type(error).__name__}: {error}".splitlines()[0]

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        return f"fla-core {importlib.metadata.version('fla-core')}"

    def refusal(self, point: Point) -> str | None:
        return None if point.op in ("gdn_prefill", "gdn_decode") else "not a linear-attention operation"

    def kernel(self, point: Point) -> Kernel:
        assert self._ops is not None
        tokens, batch = sum(point.queries), point["batch"]
        keys, heads, d = point["kv_heads"], point["heads"], point["d_qk"]
        q, k = (normal(1, tokens, keys, d, device="cuda") for _ in range(2))
        v = normal(1, tokens, heads, d, device="cuda")
        g = torch.nn.functional.logsigmoid(normal(1, tokens, heads, device="cuda", dtype=torch.float32))
        beta = torch.rand(1, tokens, heads, device="cuda", dtype=torch.float32)
        state = normal(batch, heads, d, d, device="cuda", dtype=torch.float32, scale=0.1)
        starts = torch.tensor([0, *accumulate(point.queries)], dtype=torch.int64, device="cuda")
        name = "chunk_gated_delta_rule" if point.op == "gdn_prefill" else "fused_recurrent_gated_delta_rule"
        call = self._call(getattr(self._ops, name), (q, k, v, g, beta), state, starts)
        holder: list[torch.Tensor] = [v]

        def run() -> None:
            holder[0] = call()

        def error() -> float:
            count = min(point.queries[0], _REFERENCE_TOKENS)
            inputs = [tensor[0, :count] for tensor in (q, k, v, g, beta)]
            return relative_error(holder[0][0, :count], _sequential(inputs, state[0]))

        return Kernel(f"fla/{name}", run, [], error, _TOLERANCE)

    @staticmethod
    def _call(
        function: Callable[..., tuple[torch.Tensor, torch.Tensor]],
        inputs: tuple[torch.Tensor, ...],
        state: torch.Tensor,
        starts: torch.Tensor,
    ) -> Callable[[], torch.Tensor]:
        return lambda: function(
            *inputs[:3],
            g=inputs[3],
            beta=inputs[4],
            initial_state=state,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            cu_seqlens=starts,
        )[0]


def _sequential(inputs: list[torch.Tensor], state: torch.Tensor) -> torch.Tensor:
    """Token by token in float32: decay, delta-rule correction, query."""
    q, k, v, g, beta = (tensor.float() for tensor in inputs)
    group = v.shape[1] // q.shape[1]
    q, k = (torch.nn.functional.normalize(t, dim=-1).repeat_interleave(group, dim=1) for t in (q, k))
    carried, outputs = state.clone(), []
    for t in range(q.shape[0]):
        carried = carried * g[t].exp()[:, None, None]
        correction = (v[t] - torch.einsum("hk,hkv->hv", k[t], carried)) * beta[t][:, None]
        carried = carried + torch.einsum("hk,hv->hkv", k[t], correction)
        outputs.append(torch.einsum("hk,hkv->hv", q[t], carried) * q.shape[-1] ** -0.5)
    return torch.stack(outputs)
