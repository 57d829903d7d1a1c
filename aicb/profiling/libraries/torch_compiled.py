"""Kernels that torch.compile makes of an engine's Python: rotary embedding of the queries of latent attention.

vLLM 0.24.0 rotates a slice of the queries in place, in PyTorch (``DeepseekScalingRotaryEmbedding``, interleaved pairs).
Compiled, this is one kernel that writes the whole queries anew (in its trace
``triton_poi_fused_add_clone_copy_expand_index_mul_neg_slice_split_stack_unsqueeze_view``).
"""

from __future__ import annotations

import torch

from aicb.kernels.point import Point
from aicb.profiling.kernel_library import BF16_TOLERANCE, Kernel, normal, relative_error

POSITIONS = 32768
"""Rows of the table of cosines and sines."""


class TorchCompiled:
    """torch.compile with Inductor."""

    def __init__(self) -> None:
        torch._dynamo.config.recompile_limit = 10_000  # every shape is compiled
        self._compiled = torch.compile(_rotate, dynamic=False)

    def missing(self) -> str | None:
        return None

    def version(self) -> str:
        return f"torch {torch.__version__}, compiled"

    def refusal(self, point: Point) -> str | None:
        return None if point.op == "rope_latent" else "rotary embedding of latent attention only"

    def kernel(self, point: Point) -> Kernel:
        """[m, n] queries of ``heads`` heads, the last ``d_qk`` columns of each of which are rotated."""
        m, heads, rotary = point["m"], point["heads"], point["d_qk"]
        q = normal(m, heads, point["n"] // heads, device="cuda")
        table = normal(POSITIONS, rotary, device="cuda")
        positions = torch.randint(POSITIONS, (m,), device="cuda")
        out = torch.empty_like(q)

        def run() -> None:
            out.data = self._compiled(q, positions, table)  # which allocates it

        def error() -> float:
            return relative_error(out, _rotate(q.float(), positions, table.float()))

        return Kernel("torch_compiled/rope_latent", run, [out], error, BF16_TOLERANCE)


def _rotate(q: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, columns] with the last columns rotated by pairs; ``table`` [positions, rotated]: cos, sin."""
    rotary = table.shape[-1]
    cos, sin = table[positions].chunk(2, dim=-1)
    cos, sin = (each.repeat_interleave(2, dim=-1).unsqueeze(-2) for each in (cos, sin))
    turned = q[..., -rotary:]
    swapped = torch.stack((-turned[..., 1::2], turned[..., ::2]), dim=-1).flatten(-2)
    return torch.slice_scatter(q, turned * cos + swapped * sin, -1, q.shape[-1] - rotary, q.shape[-1])
